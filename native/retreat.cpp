// The backward pass for Python: arrays in, gradients added to the arrays given. Like bind.cpp it checks what would crash
// the process if it were wrong; what the arrays mean is checked by the callers.
#include "retreat.h"

#include <cmath>
#include <new>
#include <stdexcept>

#include "buffer.h"
#include "dispatch.h"

namespace {

void expect_columns(const Buffer &b, int64_t bytes) {
  if (b.size(-1) > 1 && b.stride(-1) != bytes) refuse(b.name(), "contiguous along its last axis");
  if (b.stride(-2) % bytes) refuse(b.name(), "aligned");
}

void backward(int level, nb::handle query_, nb::handle key_, nb::handle value_, int dtype, double scale, double softcap,
              nb::handle slopes_, nb::handle offset_, nb::handle bias_, int bias_dtype, nb::handle allow_, nb::handle lo_,
              nb::handle hi_, int64_t tile_rows, int64_t block, int64_t run, bool spread, int64_t threads, nb::handle output_,
              nb::handle doutput_, nb::handle lse_, nb::handle dlse_, nb::handle dquery_, nb::handle dkey_,
              nb::handle dvalue_, nb::handle dbias_, nb::handle delta_) {
  const Buffer query(query_, "query"), key(key_, "key"), value(value_, "value"), slopes(slopes_, "slopes"),
      offset(offset_, "offset"), bias(bias_, "bias"), allow(allow_, "allow"), lo(lo_, "lo"), hi(hi_, "hi"),
      output(output_, "output"), doutput(doutput_, "doutput"), lse(lse_, "lse"), dlse(dlse_, "dlse"),
      dquery(dquery_, "dquery", true), dkey(dkey_, "dkey", true), dvalue(dvalue_, "dvalue", true),
      dbias(dbias_, "dbias", true), delta(delta_, "delta", true);
  qkv_backward back = {};
  qkv_call &call = back.call;

  const qkv_level *found;
  if (level < 0 || level >= qkv_levels(&found)) refuse("level", "an index into levels()");
  const int32_t compute = dtype == QKV_F64 ? QKV_F64 : QKV_F32;
  const int64_t bytes = dtype == QKV_F64 ? 8 : 4;
  for (const Buffer *b : {&query, &key, &value, &output, &doutput, &dquery, &dkey, &dvalue})
    if (!*b || b->axes() < 3) refuse(b->name(), "an array with at least three axes");
  for (const Buffer *b : {&query, &key, &value, &output, &doutput}) expect_float(*b, dtype);
  for (const Buffer *b : {&dquery, &dkey, &dvalue}) expect_float(*b, compute), expect_columns(*b, bytes);
  call.N = 1;
  for (int axis = 0; axis < query.axes() - 3; ++axis) call.N *= query.size(axis);
  call.H = query.size(-3), call.L = query.size(-2), call.D = query.size(-1);
  call.G = key.size(-3), call.S = key.size(-2), call.E = value.size(-1);
  if (call.H < 1 || call.G < 1 || call.D < 1 || call.E < 1) refuse("each of H, G, D and E", "at least 1");
  if (call.H % call.G) refuse("H", "a multiple of G");
  for (int64_t size : {call.N, call.H, call.L, call.S, call.D, call.E})
    if (size > kLargest) refuse("each axis", "shorter than 2**31");
  for (const Buffer *b : {&key, &dkey}) b->expect_shape({call.G, call.S, call.D});
  for (const Buffer *b : {&value, &dvalue}) b->expect_shape({call.G, call.S, call.E});
  for (const Buffer *b : {&output, &doutput}) b->expect_shape({call.H, call.L, call.E});
  dquery.expect_shape({call.H, call.L, call.D});

  std::vector<int64_t> batches[11];
  const auto place = [&](const Buffer &b, int32_t type, int which) { return operand(b, query, type, call.N, batches[which]); };
  call.query = place(query, dtype, 0), call.key = place(key, dtype, 1), call.value = place(value, dtype, 2);
  back.output = place(output, dtype, 3), back.doutput = place(doutput, dtype, 4);
  back.dquery = place(dquery, compute, 5), back.dkey = place(dkey, compute, 6), back.dvalue = place(dvalue, compute, 7);

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
  call.bias = place(bias, bias_dtype, 8);
  if (allow) allow.expect("?Bb", 1, "a bool or uint8 array"), allow.expect_shape({call.H, call.L, call.S});
  call.allow = place(allow, 0, 9);
  if (dbias) {
    if (!bias) refuse("dbias", "left out without a bias");
    expect_float(dbias, compute), dbias.expect_shape({call.H, call.L, call.S});
  }
  back.dbias = place(dbias, compute, 10);
  if (dbias && spread && dbias.stride(-2) == 0 && call.L > 1) refuse("spread", "off where rows share the gradient of a bias");

  if (!lo || !hi || lo.axes() != 3 || hi.axes() != 3) refuse("lo and hi", "int32 arrays (1 or N, L, K)");
  call.K = lo.size(2);
  for (const Buffer *b : {&lo, &hi}) {
    b->expect("il", 4, "an int32 array");
    b->expect_shape({lo.size(0), call.L, call.K}), b->expect_contiguous();
  }
  if (lo.size(0) != 1 && lo.size(0) != call.N) refuse("lo and hi", "int32 arrays (1 or N, L, K)");
  call.lo = reinterpret_cast<const int32_t *>(lo.data()), call.hi = reinterpret_cast<const int32_t *>(hi.data());
  call.range_batch = lo.size(0) == 1 ? 0 : call.L * call.K;

  if (tile_rows < 1 || block < 1 || run < 1 || threads < 1) refuse("each of tile_rows, block, run and threads", "at least 1");
  if (block > kLargest || run > kLargest) refuse("block and run", "less than 2**31");
  call.tile_rows = tile_rows, call.block = block, call.split = run, call.spread = spread, call.threads = threads;

  for (const Buffer *b : {&lse, &dlse, &delta}) {
    if (!*b && b == &dlse) continue;
    if (!*b) refuse(b->name(), "an array (N, H, L)");
    expect_float(*b, compute);
    b->expect_axes(3), b->expect_shape({call.N, call.H, call.L}), b->expect_contiguous();
  }
  back.lse = lse.data(), back.dlse = dlse.data(), back.delta = delta.data();

  Patience patience = {std::chrono::steady_clock::now() + std::chrono::milliseconds(50)};
  call.poll = check_signals, call.poll_context = &patience;
  int code;
  {
    nb::gil_scoped_release others;
    code = found[level].backward(&back);
  }
  if (code == 1) {
    if (PyErr_Occurred()) throw nb::python_error();
    throw std::runtime_error("the process forked while this call was at work; call again in the child");
  }
  if (code == 2) throw std::bad_alloc();
}

}  // namespace

void bind_backward(nb::module_ &m) {
  m.def("backward", &backward, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg().none(), nb::arg());
}
