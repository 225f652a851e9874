"""What asks a server for the plug-in's layer, and how its log shows that it ran. Loads nothing, so that every reader can."""

from __future__ import annotations

VARIABLE = "SGLANG_MOE_FUSE_DOWN_SUM_REDUCE"
"""Asks for the MoE layer of this plug-in, or of a branch of SGLang that reads it itself."""

OFF = ("", "0", "false", "off")
"""Values of the variable that leave the server alone."""

ON = ("1", "true", "on")
"""Values that ask for it without saying how: the plug-in takes them for `auto`."""

PROOF = "perfgate moe active"
"""Stands in the server's log once the plug-in has computed a layer, at the first one that it computes."""

TRIAL = "perfgate_moe.exam.trial"
"""The module that tries the plug-in in the SGLang of the Python that runs it."""

TRIAL_VARIABLES = {VARIABLE: "slots", "SGLANG_PLUGINS": "perfgate_moe", "TRITON_INTERPRET": "1"}
"""What has to be set for it: only our plug-in, its plainest mode, and kernels that run in Python."""
