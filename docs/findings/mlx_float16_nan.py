"""mlx.core.fast.scaled_dot_product_attention on the CPU: in float16 it answers NaN where the answer is 2."""

import mlx.core as mx

mx.set_default_device(mx.cpu)
q, k = mx.full((1, 1, 1, 64), 300, mx.float16), mx.full((1, 1, 2, 64), 300, mx.float16)
v = mx.broadcast_to(mx.array([1, 3], mx.float16).reshape(1, 1, 2, 1), (1, 1, 2, 64))
for dtype in (mx.float32, mx.float16):
    arrays = [x.astype(dtype) for x in (q, k, v)]
    print(dtype, mx.fast.scaled_dot_product_attention(*arrays, scale=64**-0.5)[0, 0, 0, 0].item(), "(right: 2.0)")
