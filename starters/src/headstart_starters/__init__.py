"""Pretrained backbones for Headstart, one folder each: `headstart` finds them as `starter:NAME` and never imports this."""
