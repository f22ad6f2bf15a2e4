// The only place that looks at the processor, and at whether the operating system saves its registers.
#include "dispatch.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(QKV_HAS_AMX) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#define QKV_DECLARE(level)                       \
  extern "C" int qkv_attend_##level(qkv_call *);     \
  extern "C" int qkv_backward_##level(qkv_backward *); \
  extern "C" int qkv_answers_##level(qkv_answers *);   \
  extern "C" int qkv_survey_##level(qkv_survey *);     \
  extern "C" int qkv_keep_##level(qkv_keep *);         \
  extern "C" int qkv_shares_##level(qkv_shares *);
#define QKV_LEVEL(name, level) \
  {name, qkv_attend_##level, qkv_backward_##level, qkv_answers_##level, qkv_survey_##level, qkv_keep_##level, \
   qkv_shares_##level}

QKV_DECLARE(portable)
#if defined(__x86_64__)
QKV_DECLARE(x86_64_v3)
QKV_DECLARE(x86_64_v4)
QKV_DECLARE(x86_64_v4_bf16)
#if defined(QKV_HAS_AMX)
QKV_DECLARE(x86_64_v4_amx)
extern "C" bool qkv_try_tiles(void);
#endif
#endif

namespace {

#if defined(__x86_64__)
struct Machine {
  bool v3 = false, v4 = false, bf16 = false;
  bool swift = false;  // products of bfloat16 pairs go as fast as float32's and do twice the work
  bool amx = false;    // matrix tiles of bfloat16
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
    unsigned one = 0, unused_c, unused_d;
    bf16 = v4 && a >= 1 && __get_cpuid_count(7, 1, &one, &unused, &unused_c, &unused_d) && (one & (1u << 5));
    // Measured: one a cycle on AMD's Zen 4, one every four on Intel's Sapphire Rapids, which has another unit for it.
    unsigned vendor = 0;
    swift = __get_cpuid(0, &a, &vendor, &c, &d) && vendor == signature_AMD_ebx;
    const unsigned tiles = (1u << 22) | (1u << 24);  // AMX-BF16, AMX-TILE
    amx = bf16 && (low & 0x60000) == 0x60000 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tiles) == tiles && granted();
  }

  // Linux saves tiles only for processes that ask.
  static bool granted() {
#if defined(QKV_HAS_AMX) && defined(__linux__)
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
    return false;
#endif
  }
};

bool assumed_tiles = false;
#endif

}  // namespace

int qkv_levels(const qkv_level **levels) {
  static qkv_level found[6];
  static int count = 0;
  static const bool once = [] {
    found[count++] = QKV_LEVEL("portable", portable);
#if defined(__x86_64__)
    const Machine machine;
    if (machine.v3) found[count++] = QKV_LEVEL("v3", x86_64_v3);
#if defined(QKV_HAS_AMX)
    // Tiles that somebody else carries out are slow: they are asked for by name.
    if (assumed_tiles && machine.bf16 && !machine.amx && qkv_try_tiles()) found[count++] = QKV_LEVEL("v4-amx", x86_64_v4_amx);
#endif
    if (machine.bf16 && !machine.swift) found[count++] = QKV_LEVEL("v4-bf16", x86_64_v4_bf16);
    if (machine.v4) found[count++] = QKV_LEVEL("v4", x86_64_v4);
    if (machine.bf16 && machine.swift) found[count++] = QKV_LEVEL("v4-bf16", x86_64_v4_bf16);
#if defined(QKV_HAS_AMX)
    if (machine.amx && qkv_try_tiles()) found[count++] = QKV_LEVEL("v4-amx", x86_64_v4_amx);
#endif
#endif
    return true;
  }();
  (void)once;
  *levels = found;
  return count;
}

void qkv_assume_tiles(void) {
#if defined(__x86_64__)
  assumed_tiles = true;
#endif
}

const char *qkv_known_levels(void) {
#if defined(__x86_64__)
#if defined(QKV_HAS_AMX)
  return "portable, v3, v4, v4-bf16, v4-amx";
#else
  return "portable, v3, v4, v4-bf16";
#endif
#else
  return "portable";
#endif
}
