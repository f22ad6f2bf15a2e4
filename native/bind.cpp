// The module, and attention for Python: a call in, results written to the arrays given. With recipe.cpp, retreat.cpp,
// inquire.cpp and what they share in call.h and buffer.h the only place that knows Python.
#include "call.h"
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

nb::tuple attend(int level, nb::tuple parts, nb::handle output_, nb::handle lse_, nb::handle max_, nb::handle sum_,
                 nb::handle mix_, nb::handle status_) {
  const Buffer output(output_, "output", true), lse(lse_, "lse", true), max(max_, "max", true), sum(sum_, "sum", true),
      mix(mix_, "mix", true), status(status_, "status", true);
  Given given(level, parts);
  qkv_call &call = given.call;
  const int leading = given.query.axes() - 3;
  const auto expect_result_shape = [&](const Buffer &b, bool columns) {
    b.expect_axes(leading + (columns ? 3 : 2));
    &b == &output ? void(call.output_length_first = b.length_first()) : b.expect_contiguous();
    for (int axis = 0; axis < leading; ++axis)
      if (b.size(axis) != given.query.size(axis)) refuse(b.name(), "of the query's batch shape");
    columns ? b.expect_shape({call.H, call.L, call.E}) : b.expect_shape({call.H, call.L});
  };
  const auto expect_result = [&](const Buffer &b, int32_t type, bool columns) {
    if (b) expect_float(b, type), expect_result_shape(b, columns);
  };
  expect_result(output, given.dtype, true), expect_result(mix, given.compute, true);
  for (const Buffer *b : {&lse, &max, &sum}) expect_result(*b, given.compute, false);
  if (!status) refuse("status", "a uint8 array");
  status.expect("B", 1, "a uint8 array");
  expect_result_shape(status, false);
  call.output = output.data(), call.lse = lse.data(), call.max = max.data(), call.sum = sum.data(), call.mix = mix.data();
  call.status = reinterpret_cast<uint8_t *>(status.data());
  carry_out(call, [&] { return given.level->attend(&call); });
  return nb::make_tuple(call.status_any, call.status_all, call.blocks_touched);
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);
  m.attr("known_levels") = qkv_known_levels();
  m.def("levels", &levels);
  m.def("attend", &attend, nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg());
  bind_recipe(m);
  bind_backward(m);
  bind_answers(m);
  bind_survey(m);
}
