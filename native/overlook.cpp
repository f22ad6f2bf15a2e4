// Surveys of the weights for Python: arrays in, answers written to the arrays given. Like bind.cpp it checks what would crash
// the process if it were wrong; what the arrays mean is checked by the callers.
#include "overlook.h"

#include <cmath>
#include <new>
#include <stdexcept>

#include "buffer.h"
#include "dispatch.h"

namespace {

void survey(int level, nb::handle query_, nb::handle key_, int dtype, double scale, double softcap, nb::handle slopes_,
            nb::handle offset_, nb::handle bias_, int bias_dtype, nb::handle allow_, nb::handle lo_, nb::handle hi_,
            nb::handle origin_, int64_t tile_rows, int64_t block, int64_t split, int64_t threads, nb::handle base_,
            nb::handle whole_, nb::handle part_, nb::handle position_, nb::handle entropy_, nb::handle distance_,
            nb::handle received_, nb::handle spoiled_, double unit, nb::handle pooled_, nb::handle row_edge_,
            nb::handle key_edge_, int64_t first_row, int64_t first_key) {
  const Buffer query(query_, "query"), key(key_, "key"), slopes(slopes_, "slopes"), offset(offset_, "offset"),
      bias(bias_, "bias"), allow(allow_, "allow"), lo(lo_, "lo"), hi(hi_, "hi"), origin(origin_, "origin"),
      base(base_, "base"), whole(whole_, "whole"), part(part_, "part"), position(position_, "position"),
      entropy(entropy_, "entropy", true), distance(distance_, "distance", true), received(received_, "received", true),
      spoiled(spoiled_, "spoiled", true), pooled(pooled_, "pooled", true), row_edge(row_edge_, "row_edge"),
      key_edge(key_edge_, "key_edge");
  qkv_survey ask = {};
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

  if (tile_rows < 1 || block < 1 || split < 1 || threads < 1)
    refuse("each of tile_rows, block, split and threads", "at least 1");
  if (split % block) refuse("split", "a multiple of block");
  if (block > kLargest || split > kLargest) refuse("block and split", "less than 2**31");
  call.tile_rows = tile_rows, call.block = block, call.split = split, call.threads = threads;

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
  ask.part = rows(part, true, compute, {call.N, call.H, call.L});
  const int64_t places = position && position.axes() ? position.size(0) : 0;
  if (places != 1 && places != call.N) refuse("position", "an int64 array (1 or N, L)");
  ask.position = reinterpret_cast<const int64_t *>(rows(position, true, -1, {places, call.L}));
  ask.position_batch = places == 1 ? 0 : call.L;
  ask.entropy = rows(entropy, false, compute, {call.N, call.H, call.L});
  ask.distance = rows(distance, false, compute, {call.N, call.H, call.L});
  ask.received = reinterpret_cast<int64_t *>(rows(received, false, -1, {call.N, call.H, call.S}));
  if (received) {
    if (!(unit > 0 && std::isfinite(unit))) refuse("unit", "finite and above 0");
    if (!spoiled) refuse("spoiled", "a uint8 array");
    spoiled.expect("B", 1, "a uint8 array");
    spoiled.expect_axes(3), spoiled.expect_shape({call.N, call.H, call.S}), spoiled.expect_contiguous();
    ask.spoiled = reinterpret_cast<uint8_t *>(spoiled.data()), ask.unit = unit;
  }
  if (pooled) {
    const auto edges = [&](const Buffer &b, int64_t first, int64_t size) {
      if (!b) refuse(b.name(), "an array");
      b.expect("lq", 8, "an int64 array"), b.expect_axes(1), b.expect_contiguous();
      const auto *edge = reinterpret_cast<const int64_t *>(b.data());
      const int64_t runs = b.size(0) - 1;
      if (runs < 1 || runs > kLargest) refuse(b.name(), "the edges of at least one run");
      for (int64_t i = 0; i < runs; ++i)
        if (edge[i] >= edge[i + 1]) refuse(b.name(), "ascending");
      if (first < 0 || first > kLargest || edge[0] > first || edge[runs] < first + size) refuse(b.name(), "edges around everything");
      return edge;
    };
    ask.row_edge = edges(row_edge, first_row, call.L), ask.key_edge = edges(key_edge, first_key, call.S);
    ask.bands = row_edge.size(0) - 1, ask.cells = key_edge.size(0) - 1;
    ask.first_row = first_row, ask.first_key = first_key;
    ask.pooled = rows(pooled, true, compute, {call.N, call.H, ask.bands, ask.cells});
  }

  Patience patience = {std::chrono::steady_clock::now() + std::chrono::milliseconds(50)};
  call.poll = check_signals, call.poll_context = &patience;
  int code;
  {
    nb::gil_scoped_release others;
    code = found[level].survey(&ask);
  }
  if (code == 1) {
    if (PyErr_Occurred()) throw nb::python_error();
    throw std::runtime_error("the process forked while this call was at work; call again in the child");
  }
  if (code == 2) throw std::bad_alloc();
}

}  // namespace

void bind_survey(nb::module_ &m) {
  m.def("survey", &survey, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
        nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(),
        nb::arg());
}
