"""A hybrid attention backend for vLLM: split-KV for single-request decode, the stock kernel for everything else.

A decode step of exactly one request and one query token is served by split-KV: the KV history is cut into
segments, each segment yields a partial softmax sum, and the partials are merged by log-sum-exp, over the same
paged cache that the stock backend writes. Prefill and batched decode go to the stock backend untouched.

`plugin` registers the backend with vLLM, `reference` specifies the arithmetic, `cpu` and `gpu` are the backends,
`receipt` counts which kernel served which token. Importing the package imports nothing.
"""
