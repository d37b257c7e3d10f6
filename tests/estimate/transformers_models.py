"""Runs apart from the tests: builds models of transformers and says what they hold and do.

stdin: JSON [{"model_type": ..., field: value}, ...]; stdout: a JSON line each. Without `run_tokens` the model is built on the meta device: number
of parameters, router biases that transformers keeps as buffers, the whole config and the config as `save_pretrained` would write it. With it
a small model runs that many tokens: FLOPs that torch counted, elements of the cache that it left.
"""

import json
import logging
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402


def config_of(given):
    fields = {name: value for name, value in given.items() if name not in ("model_type", "run_tokens")}
    return CONFIG_MAPPING[given["model_type"]](**fields)


def built(given):
    config = config_of(given)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    steering = sum(buffer.numel() for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias"))
    counted = {"params": sum(one.numel() for one in model.parameters()), "router_bias": steering}
    return counted | {"whole": json.loads(config.to_json_string(use_diff=False)), "saved": json.loads(config.to_json_string())}


def ran(given):
    config = config_of(given)
    config._experts_implementation = "eager"  # torch does not count grouped products
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        answer = model(torch.randint(1, 300, (1, given["run_tokens"])), use_cache=True)
    kept = [getattr(layer, name, None) for layer in answer.past_key_values.layers for name in ("keys", "values")]
    return {"flops": counted.get_total_flops(), "cache": sum(one.numel() for one in kept if one is not None)}


for line in json.load(sys.stdin):
    try:
        answer = ran(line) if "run_tokens" in line else built(line)
    except Exception as problem:
        answer = {"problem": f"{type(problem).__name__}: {problem}"}
    print(json.dumps(answer), flush=True)
