// With recipe.cpp the only place that knows Python. It turns arrays into the C call, checks what would crash the process
// if it were wrong, and lets other Python threads run meanwhile. Meaning is checked by the callers in Python.
#include <cmath>
#include <new>

#include "buffer.h"
#include "dispatch.h"
#include "inquire.h"
#include "overlook.h"
#include "recipe.h"
#include "retreat.h"

namespace {

nb::tuple levels() {
  const qkv_level *found;
  nb::list names;
  for (int i = 0, count = qkv_levels(&found); i < count; ++i) names.append(found[i].name);
  return nb::tuple(names);
}

nb::tuple attend(int level, nb::handle query_, nb::handle key_, nb::handle value_, int dtype, double scale, double softcap,
                 nb::handle slopes_, nb::handle sink_, nb::handle offset_, nb::handle bias_, int bias_dtype,
                 nb::handle allow_, nb::handle lo_, nb::handle hi_, nb::handle origin_, int64_t tile_rows, int64_t block,
                 int64_t split, bool spread, int64_t threads, nb::handle output_, nb::handle lse_, nb::handle max_,
                 nb::handle sum_, nb::handle mix_, nb::handle status_) {
  const Buffer query(query_, "query"), key(key_, "key"), value(value_, "value"), slopes(slopes_, "slopes"),
      sink(sink_, "sink"), offset(offset_, "offset"), bias(bias_, "bias"), allow(allow_, "allow"), lo(lo_, "lo"),
      hi(hi_, "hi"), origin(origin_, "origin"), output(output_, "output", true), lse(lse_, "lse", true),
      max(max_, "max", true), sum(sum_, "sum", true), mix(mix_, "mix", true), status(status_, "status", true);
  qkv_call call = {};

  const qkv_level *found;
  if (level < 0 || level >= qkv_levels(&found)) refuse("level", "an index into levels()");
  for (const Buffer *b : {&query, &key, &value}) {
    if (!*b || b->axes() < 3) refuse(b->name(), "an array with at least three axes");
    expect_float(*b, dtype);
  }
  call.N = 1;
  for (int axis = 0; axis < query.axes() - 3; ++axis) call.N *= query.size(axis);
  call.H = query.size(-3), call.L = query.size(-2), call.D = query.size(-1);
  call.G = key.size(-3), call.S = key.size(-2), call.E = value.size(-1);
  if (call.H < 1 || call.G < 1 || call.D < 1 || call.E < 1) refuse("each of H, G, D and E", "at least 1");
  if (call.H % call.G) refuse("H", "a multiple of G");
  for (int64_t size : {call.N, call.H, call.L, call.S, call.D, call.E})
    if (size > kLargest) refuse("each axis", "shorter than 2**31");
  key.expect_shape({call.G, call.S, call.D});
  value.expect_shape({call.G, call.S, call.E});

  std::vector<int64_t> batches[5];
  call.query = operand(query, query, dtype, call.N, batches[0]);
  call.key = operand(key, query, dtype, call.N, batches[1]);
  call.value = operand(value, query, dtype, call.N, batches[2]);

  if (!std::isfinite(scale)) refuse("scale", "finite");
  if (!(softcap >= 0 && std::isfinite(softcap))) refuse("softcap", "finite and not negative");
  call.scale = scale, call.softcap = softcap;
  for (const Buffer *b : {&slopes, &sink}) {
    if (!*b) continue;
    b->expect("d", 8, "a float64 array");
    b->expect_axes(1), b->expect_shape({call.H}), b->expect_contiguous();
  }
  call.slopes = reinterpret_cast<const double *>(slopes.data());
  call.sink = reinterpret_cast<const double *>(sink.data());
  if (!offset) refuse("offset", "an int64 array");
  offset.expect("lq", 8, "an int64 array");
  offset.expect_axes(1), offset.expect_shape({call.N}), offset.expect_contiguous();
  call.offset = reinterpret_cast<const int64_t *>(offset.data());
  for (int64_t n = 0; n < call.N; ++n)
    if (call.offset[n] > INT64_MAX / 4 || call.offset[n] < INT64_MIN / 4) refuse("offset", "within 2**61 of zero");
  if (bias) {
    if (bias_dtype != dtype && bias_dtype != QKV_F32) refuse("bias", "of the query's dtype or float32");
    expect_float(bias, bias_dtype);
    bias.expect_shape({call.H, call.L, call.S});
  }
  call.bias = operand(bias, query, bias_dtype, call.N, batches[3]);
  if (allow) {
    allow.expect("?Bb", 1, "a bool or uint8 array");
    allow.expect_shape({call.H, call.L, call.S});
  }
  call.allow = operand(allow, query, 0, call.N, batches[4]);

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

  if (tile_rows < 1 || block < 1 || split < 1 || threads < 1) refuse("each of tile_rows, block, split and threads", "at least 1");
  if (split % block) refuse("split", "a multiple of block");
  if (block > kLargest || split > kLargest) refuse("block and split", "less than 2**31");
  call.tile_rows = tile_rows, call.block = block, call.split = split, call.spread = spread, call.threads = threads;

  const int32_t compute = dtype == QKV_F64 ? QKV_F64 : QKV_F32;
  const int leading = query.axes() - 3;
  const auto expect_result_shape = [&](const Buffer &b, bool columns) {
    b.expect_axes(leading + (columns ? 3 : 2));
    &b == &output ? void(call.output_length_first = b.length_first()) : b.expect_contiguous();
    for (int axis = 0; axis < leading; ++axis)
      if (b.size(axis) != query.size(axis)) refuse(b.name(), "of the query's batch shape");
    columns ? b.expect_shape({call.H, call.L, call.E}) : b.expect_shape({call.H, call.L});
  };
  const auto expect_result = [&](const Buffer &b, int32_t type, bool columns) {
    if (b) expect_float(b, type), expect_result_shape(b, columns);
  };
  expect_result(output, dtype, true), expect_result(mix, compute, true);
  expect_result(lse, compute, false), expect_result(max, compute, false), expect_result(sum, compute, false);
  if (!status) refuse("status", "a uint8 array");
  status.expect("B", 1, "a uint8 array");
  expect_result_shape(status, false);
  call.output = output.data(), call.lse = lse.data(), call.max = max.data(), call.sum = sum.data(), call.mix = mix.data();
  call.status = reinterpret_cast<uint8_t *>(status.data());

  Patience patience = {std::chrono::steady_clock::now() + std::chrono::milliseconds(50)};
  call.poll = check_signals, call.poll_context = &patience;
  int code;
  {
    nb::gil_scoped_release others;
    code = found[level].attend(&call);
  }
  if (code == 1) {
    if (PyErr_Occurred()) throw nb::python_error();
    throw std::runtime_error("the process forked while this call was at work; call again in the child");
  }
  if (code == 2) throw std::bad_alloc();
  return nb::make_tuple(call.status_any, call.status_all, call.blocks_touched);
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);
  m.attr("known_levels") = qkv_known_levels();
  m.def("levels", &levels);
  m.def("attend", &attend, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg().none(), nb::arg());
  bind_recipe(m);
  bind_backward(m);
  bind_answers(m);
  bind_survey(m);
}
