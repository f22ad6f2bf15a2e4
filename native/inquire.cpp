// Questions about the weights for Python: a call in, answers written to the arrays given.
#include "inquire.h"

#include "call.h"

namespace {

void answers(int level, nb::tuple parts, int64_t run, nb::handle base_, nb::handle whole_, int64_t first_key,
             nb::handle entropy_, nb::handle received_, nb::handle top_key_, nb::handle top_weight_, nb::handle score_,
             nb::handle reach_) {
  const Buffer base(base_, "base"), whole(whole_, "whole"), entropy(entropy_, "entropy", true),
      received(received_, "received", true), top_key(top_key_, "top_key", true),
      top_weight(top_weight_, "top_weight", true), score(score_, "score", true), reach(reach_, "reach", true);
  Given given(level, parts);
  qkv_answers ask = {};
  ask.call = given.call;
  qkv_call &call = ask.call;
  if (run < 1 || run > kLargest) refuse("run", "at least 1 and less than 2**31");
  ask.run = run, ask.first_key = first_key;

  const int32_t type = given.compute;
  ask.base = result_of(base, type, {call.N, call.H, call.L}), ask.whole = result_of(whole, type, {call.N, call.H, call.L});
  if ((!base || !whole) && (!score || base || whole || entropy || received || top_key)) refuse("base and whole", "arrays");
  ask.entropy = result_of(entropy, type, {call.N, call.H, call.L});
  ask.received = result_of(received, type, {call.N, call.H, call.S});
  read_top(top_key, top_weight, type, call, ask.count, ask.top_key, ask.top_weight);
  ask.score = result_of(score, type, {call.N, call.H, call.L, call.S});
  if (score) {
    if (!reach) refuse("reach", "a bool array");
    reach.expect("?", 1, "a bool array");
    reach.expect_axes(4), reach.expect_shape({call.N, call.H, call.L, call.S}), reach.expect_contiguous();
    ask.reach = reinterpret_cast<uint8_t *>(reach.data());
  }
  carry_out(call, [&] { return given.level->answers(&ask); });
}

}  // namespace

void bind_answers(nb::module_ &m) {
  m.def("answers", &answers, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(),
        nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none());
}
