// The only place that looks at the processor, and at whether the operating system saves its registers.
#include "dispatch.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

extern "C" int qkv_attend_portable(qkv_call *);
extern "C" int qkv_backward_portable(qkv_backward *);
extern "C" int qkv_answers_portable(qkv_answers *);
extern "C" int qkv_survey_portable(qkv_survey *);
extern "C" int qkv_keep_portable(qkv_keep *);
#if defined(__x86_64__)
extern "C" int qkv_attend_x86_64_v3(qkv_call *);
extern "C" int qkv_backward_x86_64_v3(qkv_backward *);
extern "C" int qkv_answers_x86_64_v3(qkv_answers *);
extern "C" int qkv_survey_x86_64_v3(qkv_survey *);
extern "C" int qkv_keep_x86_64_v3(qkv_keep *);
extern "C" int qkv_attend_x86_64_v4(qkv_call *);
extern "C" int qkv_backward_x86_64_v4(qkv_backward *);
extern "C" int qkv_answers_x86_64_v4(qkv_answers *);
extern "C" int qkv_survey_x86_64_v4(qkv_survey *);
extern "C" int qkv_keep_x86_64_v4(qkv_keep *);
#endif

namespace {

#if defined(__x86_64__)
struct Machine {
  bool v3 = false, v4 = false;
  Machine() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    const unsigned basic = bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C | bit_POPCNT | bit_SSE4_2;
    if ((c & basic) != basic) return;
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    unsigned extended = 0, unused;
    if (!__get_cpuid(0x80000001, &a, &unused, &extended, &d) || !(extended & bit_LZCNT)) return;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    const unsigned ymm = bit_AVX2 | bit_BMI | bit_BMI2, zmm = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
    v3 = (low & 0x06) == 0x06 && (b & ymm) == ymm;           // XMM, YMM saved
    v4 = v3 && (low & 0xe6) == 0xe6 && (b & zmm) == zmm;     // and mask registers, ZMM
  }
};
#endif

}  // namespace

int qkv_levels(const qkv_level **levels) {
  static qkv_level found[3];
  static const int count = [] {
    int n = 0;
    found[n++] = {"portable", qkv_attend_portable, qkv_backward_portable, qkv_answers_portable, qkv_survey_portable,
                  qkv_keep_portable};
#if defined(__x86_64__)
    const Machine machine;
    if (machine.v3) found[n++] = {"v3", qkv_attend_x86_64_v3, qkv_backward_x86_64_v3, qkv_answers_x86_64_v3, qkv_survey_x86_64_v3,
                  qkv_keep_x86_64_v3};
    if (machine.v4) found[n++] = {"v4", qkv_attend_x86_64_v4, qkv_backward_x86_64_v4, qkv_answers_x86_64_v4, qkv_survey_x86_64_v4,
                  qkv_keep_x86_64_v4};
#endif
    return n;
  }();
  *levels = found;
  return count;
}

const char *qkv_known_levels(void) {
#if defined(__x86_64__)
  return "portable, v3, v4";
#else
  return "portable";
#endif
}
