"""What chooses the MoE path of a server, and how the path shows: names that the plug-in and the session must agree on."""

from __future__ import annotations

VARIABLE = "SGLANG_MOE_FUSE_DOWN_SUM_REDUCE"
"""Asks for the MoE layer of the plug-in `perfgate_moe`, or of a branch of SGLang that reads it itself."""

OFF = ("", "0", "false", "off")
"""Values of the variable that leave the server alone."""

ON = ("1", "true", "on")
"""Values that ask for it without saying how: the plug-in takes them for `auto`."""

PROOF = "perfgate moe active"
"""Stands in the server's log once the plug-in has computed a layer, at the first one that it computes."""

SUM_OPTION, SUM_KERNEL = "--enable-fused-moe-sum-all-reduce", "fused_moe_kernel"
"""SGLang's own fusion of the MoE sum, and the kernel of the Triton runner that it is a part of."""
