// Questions about the weights for Python: arrays in, answers written to the arrays given. Like bind.cpp it checks what
// would crash the process if it were wrong; what the arrays mean is checked by the callers.
#include "inquire.h"

#include <cmath>
#include <new>
#include <stdexcept>

#include "buffer.h"
#include "dispatch.h"

namespace {

void answers(int level, nb::handle query_, nb::handle key_, int dtype, double scale, double softcap, nb::handle slopes_,
             nb::handle offset_, nb::handle bias_, int bias_dtype, nb::handle allow_, nb::handle lo_, nb::handle hi_,
             nb::handle origin_, int64_t tile_rows, int64_t block, int64_t split, int64_t run, int64_t threads,
             nb::handle base_, nb::handle whole_, int64_t first_key, nb::handle entropy_, nb::handle received_,
             nb::handle top_key_, nb::handle top_weight_) {
  const Buffer query(query_, "query"), key(key_, "key"), slopes(slopes_, "slopes"), offset(offset_, "offset"),
      bias(bias_, "bias"), allow(allow_, "allow"), lo(lo_, "lo"), hi(hi_, "hi"), origin(origin_, "origin"),
      base(base_, "base"), whole(whole_, "whole"), entropy(entropy_, "entropy", true),
      received(received_, "received", true), top_key(top_key_, "top_key", true),
      top_weight(top_weight_, "top_weight", true);
  qkv_answers ask = {};
  qkv_call &call = ask.call;

  const qkv_level *found;
  if (level < 0 || level >= qkv_levels(&found)) refuse("level", "an index into levels()");
  const int32_t compute = dtype == QKV_F64 ? QKV_F64 : QKV_F32;
  for (const Buffer *b : {&query, &key}) {
    if (!*b || b->axes() < 3) refuse(b->name(), "an array with at least three axes");
    expect_float(*b, dtype);
  }
  call.N = 1;
  for (int axis = 0; axis < query.axes() - 3; ++axis) call.N *= query.size(axis);
  call.H = query.size(-3), call.L = query.size(-2), call.D = query.size(-1);
  call.G = key.size(-3), call.S = key.size(-2), call.E = 1;
  if (call.H < 1 || call.G < 1 || call.D < 1) refuse("each of H, G and D", "at least 1");
  if (call.H % call.G) refuse("H", "a multiple of G");
  for (int64_t size : {call.N, call.H, call.L, call.S, call.D})
    if (size > kLargest) refuse("each axis", "shorter than 2**31");
  key.expect_shape({call.G, call.S, call.D});

  std::vector<int64_t> batches[4];
  const auto place = [&](const Buffer &b, int32_t type, int which) { return operand(b, query, type, call.N, batches[which]); };
  call.query = place(query, dtype, 0), call.key = call.value = place(key, dtype, 1);

  if (!std::isfinite(scale)) refuse("scale", "finite");
  if (!(softcap >= 0 && std::isfinite(softcap))) refuse("softcap", "finite and not negative");
  call.scale = scale, call.softcap = softcap;
  if (slopes) slopes.expect("d", 8, "a float64 array"), slopes.expect_axes(1), slopes.expect_shape({call.H}), slopes.expect_contiguous();
  call.slopes = reinterpret_cast<const double *>(slopes.data());
  if (!offset) refuse("offset", "an int64 array");
  offset.expect("lq", 8, "an int64 array");
  offset.expect_axes(1), offset.expect_shape({call.N}), offset.expect_contiguous();
  call.offset = reinterpret_cast<const int64_t *>(offset.data());
  for (int64_t n = 0; n < call.N; ++n)
    if (call.offset[n] > INT64_MAX / 4 || call.offset[n] < INT64_MIN / 4) refuse("offset", "within 2**61 of zero");
  if (bias) {
    if (bias_dtype != dtype && bias_dtype != QKV_F32) refuse("bias", "of the query's dtype or float32");
    expect_float(bias, bias_dtype), bias.expect_shape({call.H, call.L, call.S});
  }
  call.bias = place(bias, bias_dtype, 2);
  if (allow) allow.expect("?Bb", 1, "a bool or uint8 array"), allow.expect_shape({call.H, call.L, call.S});
  call.allow = place(allow, 0, 3);

  if (!lo || !hi || lo.axes() != 3 || hi.axes() != 3) refuse("lo and hi", "int32 arrays (1 or N, L, K)");
  call.K = lo.size(2);
  for (const Buffer *b : {&lo, &hi}) {
    b->expect("il", 4, "an int32 array");
    b->expect_shape({lo.size(0), call.L, call.K}), b->expect_contiguous();
  }
  if (lo.size(0) != 1 && lo.size(0) != call.N) refuse("lo and hi", "int32 arrays (1 or N, L, K)");
  call.lo = reinterpret_cast<const int32_t *>(lo.data()), call.hi = reinterpret_cast<const int32_t *>(hi.data());
  call.range_batch = lo.size(0) == 1 ? 0 : call.L * call.K;
  if (origin) {
    origin.expect("il", 4, "an int32 array");
    origin.expect_axes(2), origin.expect_shape({call.L}), origin.expect_contiguous();
    if (origin.size(0) != 1 && origin.size(0) != call.N) refuse("origin", "an int32 array (1 or N, L)");
    call.origin = reinterpret_cast<const int32_t *>(origin.data());
    call.origin_batch = origin.size(0) == 1 ? 0 : call.L;
  }

  if (tile_rows < 1 || block < 1 || split < 1 || run < 1 || threads < 1)
    refuse("each of tile_rows, block, split, run and threads", "at least 1");
  if (split % block) refuse("split", "a multiple of block");
  if (block > kLargest || split > kLargest || run > kLargest) refuse("block, split and run", "less than 2**31");
  call.tile_rows = tile_rows, call.block = block, call.split = split, call.threads = threads, ask.run = run;

  const auto rows = [&](const Buffer &b, bool needed, int32_t type, std::initializer_list<int64_t> shape) {
    if (!b) {
      if (needed) refuse(b.name(), "an array");
      return b.data();
    }
    type < 0 ? b.expect("lq", 8, "an int64 array") : expect_float(b, type);
    b.expect_axes(int(shape.size())), b.expect_shape(shape), b.expect_contiguous();
    return b.data();
  };
  ask.base = rows(base, true, compute, {call.N, call.H, call.L});
  ask.whole = rows(whole, true, compute, {call.N, call.H, call.L});
  ask.entropy = rows(entropy, false, compute, {call.N, call.H, call.L});
  ask.received = rows(received, false, compute, {call.N, call.H, call.S});
  ask.first_key = first_key;
  ask.count = top_key && top_key.axes() ? top_key.size(-1) : 0;
  if (top_key && ask.count < 1) refuse("top_key", "an array with room for a key a row");
  ask.top_key = reinterpret_cast<int64_t *>(rows(top_key, false, -1, {call.N, call.H, call.L, ask.count}));
  ask.top_weight = rows(top_weight, bool(top_key), compute, {call.N, call.H, call.L, ask.count});

  Patience patience = {std::chrono::steady_clock::now() + std::chrono::milliseconds(50)};
  call.poll = check_signals, call.poll_context = &patience;
  int code;
  {
    nb::gil_scoped_release others;
    code = found[level].answers(&ask);
  }
  if (code == 1) {
    if (PyErr_Occurred()) throw nb::python_error();
    throw std::runtime_error("the process forked while this call was at work; call again in the child");
  }
  if (code == 2) throw std::bad_alloc();
}

}  // namespace

void bind_answers(nb::module_ &m) {
  m.def("answers", &answers, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
        nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg().none());
}
