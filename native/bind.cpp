// The module, and attention for Python: a call in, results written to the arrays given. With recipe.cpp, retreat.cpp,
// inquire.cpp and what they share in call.h and buffer.h the only place that knows Python.
#include "apportion.h"
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

// The results of a call, written to the arrays given.
class Results {
 public:
  Results(nb::handle output, nb::handle lse, nb::handle max, nb::handle sum, nb::handle mix, nb::handle status)
      : output_(output, "output", true), lse_(lse, "lse", true), max_(max, "max", true), sum_(sum, "sum", true),
        mix_(mix, "mix", true), status_(status, "status", true) {}

  void put_into(qkv_call &call, const Given &given) const {
    const int leading = given.query.axes() - 3;
    const auto expect_shape = [&](const Buffer &b, bool columns) {
      b.expect_axes(leading + (columns ? 3 : 2));
      &b == &output_ ? void(call.output_length_first = b.length_first()) : b.expect_contiguous();
      for (int axis = 0; axis < leading; ++axis)
        if (b.size(axis) != given.query.size(axis)) refuse(b.name(), "of the query's batch shape");
      columns ? b.expect_shape({call.H, call.L, call.E}) : b.expect_shape({call.H, call.L});
    };
    const auto expect = [&](const Buffer &b, int32_t type, bool columns) {
      if (b) expect_float(b, type), expect_shape(b, columns);
    };
    expect(output_, given.dtype, true), expect(mix_, given.compute, true);
    for (const Buffer *b : {&lse_, &max_, &sum_}) expect(*b, given.compute, false);
    if (!status_) refuse("status", "a uint8 array");
    status_.expect("B", 1, "a uint8 array");
    expect_shape(status_, false);
    call.output = output_.data(), call.lse = lse_.data(), call.max = max_.data(), call.sum = sum_.data();
    call.mix = mix_.data(), call.status = reinterpret_cast<uint8_t *>(status_.data());
  }

 private:
  const Buffer output_, lse_, max_, sum_, mix_, status_;
};

nb::tuple attend(int level, nb::tuple parts, nb::handle output, nb::handle lse, nb::handle max, nb::handle sum,
                 nb::handle mix, nb::handle status) {
  const Results results(output, lse, max, sum, mix, status);
  Given given(level, parts);
  qkv_call &call = given.call;
  results.put_into(call, given);
  carry_out(call, [&] { return given.level->attend(&call); });
  return nb::make_tuple(call.status_any, call.status_all, call.blocks_touched);
}

// The same with answers about the weights, from one pass.
nb::tuple keep(int level, nb::tuple parts, nb::handle output, nb::handle lse, nb::handle max, nb::handle sum, nb::handle mix,
               nb::handle status, int64_t first_key, nb::handle entropy_, nb::handle received_, nb::handle top_key_,
               nb::handle top_weight_) {
  const Results results(output, lse, max, sum, mix, status);
  const Buffer entropy(entropy_, "entropy", true), received(received_, "received", true), top_key(top_key_, "top_key", true),
      top_weight(top_weight_, "top_weight", true);
  Given given(level, parts);
  qkv_keep ask = {};
  results.put_into(given.call, given);
  ask.call = given.call;
  qkv_call &call = ask.call;
  ask.entropy = result_of(entropy, given.compute, {call.N, call.H, call.L});
  ask.received = result_of(received, given.compute, {call.N, call.H, call.S});
  read_top(top_key, top_weight, given.compute, call, ask.count, ask.top_key, ask.top_weight);
  ask.first_key = first_key;
  carry_out(call, [&] { return given.level->keep(&ask); });
  return nb::make_tuple(call.status_any, call.status_all, call.blocks_touched);
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);
  m.attr("known_levels") = qkv_known_levels();
  m.def("levels", &levels);
  m.def("assume_tiles", &qkv_assume_tiles);
  m.def("attend", &attend, nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg());
  m.def("keep", &keep, nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none());
  bind_recipe(m);
  bind_backward(m);
  bind_answers(m);
  bind_survey(m);
  bind_shares(m);
}
