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

SUM_OPTION = "--enable-fused-moe-sum-all-reduce"
"""Asks SGLang's Triton runner to add the experts' results up within its down projection."""

SUM_REDUCED = r"moe_sum|triton_\w*mul_sum"
"""Kernels that add the experts' results up when nothing is fused: SGLang's `moe_sum_reduce`, and up to 32 tokens what
torch.compile makes of `sum` and `mul_`. SGLang fuses them away only where a token visits more than two experts."""

SUM_FUSED = r"FillFunctor<c10::(BFloat16|Half)>"
"""The fused path sets each layer's result to zero before its down projection adds to it: one such kernel a layer more. The
projection itself is `fused_moe_kernel` either way, and proves nothing."""
