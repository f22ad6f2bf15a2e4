// The backward pass for Python: a call in, gradients added to the arrays given.
#include "retreat.h"

#include "call.h"

namespace {

void expect_columns(const Buffer &b, int64_t bytes) {
  if (b.size(-1) > 1 && b.stride(-1) != bytes) refuse(b.name(), "contiguous along its last axis");
  if (b.stride(-2) % bytes) refuse(b.name(), "aligned");
}

void backward(int level, nb::tuple parts, nb::handle output_, nb::handle doutput_, nb::handle lse_, nb::handle dlse_,
              nb::handle dquery_, nb::handle dkey_, nb::handle dvalue_, nb::handle dbias_, nb::handle delta_) {
  const Buffer output(output_, "output"), doutput(doutput_, "doutput"), lse(lse_, "lse"), dlse(dlse_, "dlse"),
      dquery(dquery_, "dquery", true), dkey(dkey_, "dkey", true), dvalue(dvalue_, "dvalue", true),
      dbias(dbias_, "dbias", true), delta(delta_, "delta", true);
  Given given(level, parts, false);
  qkv_backward back = {};
  back.call = given.call;
  qkv_call &call = back.call;

  const int64_t bytes = given.compute == QKV_F64 ? 8 : 4;
  for (const Buffer *b : {&output, &doutput, &dquery, &dkey, &dvalue})
    if (!*b || b->axes() < 3) refuse(b->name(), "an array with at least three axes");
  for (const Buffer *b : {&output, &doutput}) expect_float(*b, given.dtype), b->expect_shape({call.H, call.L, call.E});
  for (const Buffer *b : {&dquery, &dkey, &dvalue}) expect_float(*b, given.compute), expect_columns(*b, bytes);
  dquery.expect_shape({call.H, call.L, call.D}), dkey.expect_shape({call.G, call.S, call.D});
  dvalue.expect_shape({call.G, call.S, call.E});
  back.output = given.place(output, given.dtype), back.doutput = given.place(doutput, given.dtype);
  back.dquery = given.place(dquery, given.compute), back.dkey = given.place(dkey, given.compute);
  back.dvalue = given.place(dvalue, given.compute);
  if (dbias) {
    if (!given.bias) refuse("dbias", "left out without a bias");
    expect_float(dbias, given.compute), dbias.expect_shape({call.H, call.L, call.S});
  }
  back.dbias = given.place(dbias, given.compute);
  if (dbias && call.spread && dbias.stride(-2) == 0 && call.L > 1)
    refuse("spread", "off where rows share the gradient of a bias");

  if (!lse || !delta) refuse("lse and delta", "arrays (N, H, L)");
  back.lse = result_of(lse, given.compute, {call.N, call.H, call.L});
  back.dlse = result_of(dlse, given.compute, {call.N, call.H, call.L});
  back.delta = result_of(delta, given.compute, {call.N, call.H, call.L});
  carry_out(call, [&] { return given.level->backward(&back); });
}

}  // namespace

void bind_backward(nb::module_ &m) {
  m.def("backward", &backward, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
}
