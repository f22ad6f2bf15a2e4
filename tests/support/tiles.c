// Carries out AMX's tile instructions on a processor that lacks them, so that tests can run the kernel that uses them.
//
// Such a processor raises #UD, which Linux delivers as SIGILL. The handler here reads the instruction, does its work on
// tiles that each thread has of its own, and goes on behind it. What a processor with tiles would refuse ends the process
// with one line that says what and where. Whatever is no tile instruction meets the handler that was there before.
//
// A thread that blocks SIGILL is killed by it: the system delivers no synchronous signal that is blocked.
//
// After the operations in Intel's Software Developer's Manual, volume 2 (LDTILECFG, TILELOADD, TDPBF16PS and so on).
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <immintrin.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { TILES = 8, ROWS = 16, BYTES = 64, FLOATS = BYTES / 4 };

enum Kind { LDTILECFG, STTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILELOADDT1, TILESTORED, TDPBF16PS, KINDS, OTHER };
static const char *const names[KINDS] = {"LDTILECFG", "STTILECFG",   "TILERELEASE", "TILEZERO",
                                         "TILELOADD", "TILELOADDT1", "TILESTORED",  "TDPBF16PS"};

// As it lies in memory. A tile of no rows and no columns cannot be used; palette 0 is no configuration at all.
struct Config {
  uint8_t palette, start_row, zero[14];
  uint16_t colsb[TILES], no_colsb[TILES];  // bytes of a row
  uint8_t rows[TILES], no_rows[TILES];
};
_Static_assert(sizeof(struct Config) == 64, "the configuration is 64 bytes");

// Bytes behind a row's colsb and rows behind a tile's rows are always 0: a configuration clears all, and none writes there.
static __thread struct {
  struct Config config;
  uint8_t tile[TILES][ROWS][BYTES];
} state;

static unsigned counts[KINDS];
static int order;
static struct sigaction former;
static int installed;

// Reading the instruction.

struct Instruction {
  enum Kind kind;
  const uint8_t *at, *next;
  int reg, rm, vvvv;
  char *memory;    // base + displacement, and the index where it is no stride
  int64_t stride;  // scaled index: bytes from row to row
};

// Number in the instruction -> place in the context.
static const int places[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                               REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

// What the opcode, the prefix it implies (none, 66, F3, F2) and the byte of registers say together.
static enum Kind kind_of(int opcode, int prefix, int modrm) {
  const bool memory = modrm >> 6 != 3;
  const int reg = modrm >> 3 & 7, rm = modrm & 7;
  if (opcode == 0x49 && memory && reg == 0 && prefix < 2) return prefix == 0 ? LDTILECFG : STTILECFG;
  if (opcode == 0x49 && modrm == 0xc0 && prefix == 0) return TILERELEASE;
  if (opcode == 0x49 && !memory && rm == 0 && prefix == 3) return TILEZERO;
  if (opcode == 0x4b && memory && rm == 4 && prefix > 0)
    return prefix == 1 ? TILELOADDT1 : prefix == 2 ? TILESTORED : TILELOADD;
  if (opcode == 0x5c && !memory && prefix == 2) return TDPBF16PS;
  return OTHER;
}

static int32_t displacement(const uint8_t *at, int bytes) {
  int32_t wide = 0;
  if (bytes == 1) return (int8_t)*at;
  if (bytes == 4) memcpy(&wide, at, 4);
  return wide;
}

// `high_index` and `high_base` are 8 where the prefix names one of the upper eight registers.
static void read_memory_operand(struct Instruction *i, const greg_t *registers, int high_index, int high_base) {
  const uint8_t *p = i->at + 4;
  const int mod = *p >> 6, rm = *p & 7;
  ++p;
  int base = rm;
  if (rm == 4) {
    const int scale = *p >> 6, index = (*p >> 3 & 7) | high_index;
    base = *p++ & 7;
    if (index != 4) i->stride = registers[places[index]] << scale;  // 4, the stack pointer, stands for none
  }
  const bool without_base = mod == 0 && base == 5;
  const int bytes = mod == 1 ? 1 : mod == 2 || without_base ? 4 : 0;
  i->next = p + bytes;
  int64_t from = 0;
  if (!without_base)
    from = registers[places[base | high_base]];
  else if (rm == 5)
    from = (int64_t)i->next;  // relative to the next instruction
  i->memory = (char *)(from + displacement(p, bytes));
}

// All of them have the three-byte prefix C4, its bits for the upper registers and for vvvv inverted.
static struct Instruction decode(const greg_t *registers) {
  struct Instruction i = {.kind = OTHER, .at = (const uint8_t *)registers[REG_RIP]};
  const uint8_t *const p = i.at;
  if (p[0] != 0xc4 || (p[1] & 0x1f) != 2 || p[2] & 0x84) return i;  // map 0F38, W0, 128 bits
  const int high_reg = p[1] & 0x80 ? 0 : 8, high_index = p[1] & 0x40 ? 0 : 8, high_base = p[1] & 0x20 ? 0 : 8;
  i.vvvv = ~p[2] >> 3 & 15;
  i.reg = (p[4] >> 3 & 7) | high_reg;
  i.rm = p[4] & 7;
  i.next = p + 5;
  const enum Kind kind = kind_of(p[3], p[2] & 3, p[4]);
  const bool memory = p[4] >> 6 != 3;
  // There are eight tiles, and only a product has a third one.
  if (i.reg >= TILES || i.vvvv >= TILES || (!memory && high_base) || (kind != TDPBF16PS && i.vvvv != 0)) return i;
  if (kind != OTHER && memory) read_memory_operand(&i, registers, high_index, high_base);
  i.kind = kind;
  return i;
}

// Doing its work.

static void refuse(const struct Instruction *i, const char *exception, const char *why, ...) {
  char text[160], line[512];
  va_list values;
  va_start(values, why);
  vsnprintf(text, sizeof text, why, values);
  va_end(values);
  Dl_info module = {0};
  dladdr(i->at, &module);
  const char *file = module.dli_fname ? module.dli_fname : "code of no file";
  const char *slash = strrchr(file, '/');
  snprintf(line, sizeof line, "tiles: %s raises %s: %s (%s + %#lx)\n", names[i->kind], exception, text,
           slash ? slash + 1 : file, (unsigned long)(i->at - (const uint8_t *)module.dli_fbase));
  if (write(STDERR_FILENO, line, strlen(line)) < 0) _exit(127);
  abort();
}

static bool any(const void *from, size_t bytes) {
  for (size_t n = 0; n < bytes; ++n)
    if (((const uint8_t *)from)[n]) return true;
  return false;
}

static void load_config(const struct Instruction *i) {
  struct Config c;
  memcpy(&c, i->memory + i->stride, sizeof c);
  if (c.palette > 1) refuse(i, "#GP", "there is no palette %d", c.palette);
  if (c.palette == 0) memset(&c, 0, sizeof c);
  if (c.start_row) refuse(i, "nothing", "a start at row %d is legal, and not emulated", c.start_row);
  if (any(c.zero, sizeof c.zero) || any(c.no_colsb, sizeof c.no_colsb) || any(c.no_rows, sizeof c.no_rows))
    refuse(i, "#GP", "reserved bytes are not 0");
  for (int t = 0; t < TILES; ++t) {
    if (c.rows[t] > ROWS) refuse(i, "#GP", "tile %d has %d rows, more than 16", t, c.rows[t]);
    if (c.colsb[t] > BYTES) refuse(i, "#GP", "tile %d has rows of %d bytes, more than 64", t, c.colsb[t]);
    if (!c.rows[t] != !c.colsb[t]) refuse(i, "#GP", "tile %d is %d rows of %d bytes", t, c.rows[t], c.colsb[t]);
  }
  memset(&state, 0, sizeof state);
  state.config = c;
}

static void need_tile(const struct Instruction *i, int t) {
  if (!state.config.palette) refuse(i, "#UD", "no tiles are configured");
  if (!state.config.rows[t]) refuse(i, "#UD", "tile %d is not configured", t);
  if (i->kind != TILEZERO && state.config.colsb[t] % 4)
    refuse(i, "#UD", "tile %d has rows of %d bytes, no multiple of 4", t, state.config.colsb[t]);
}

static void load_rows(const struct Instruction *i) {
  need_tile(i, i->reg);
  for (int row = 0; row < state.config.rows[i->reg]; ++row)
    memcpy(state.tile[i->reg][row], i->memory + row * i->stride, state.config.colsb[i->reg]);
}

static void store_rows(const struct Instruction *i) {
  need_tile(i, i->reg);
  for (int row = 0; row < state.config.rows[i->reg]; ++row)
    memcpy(i->memory + row * i->stride, state.tile[i->reg][row], state.config.colsb[i->reg]);
}

static float widened(const uint8_t *bfloat16) {
  uint16_t half;
  memcpy(&half, bfloat16, sizeof half);
  const uint32_t bits = (uint32_t)half << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// One row of a product. The manual has even and odd columns of the row in a chain each, from 0 and in ascending order,
// and adds the sum of both to what stands in the destination; Bochs does the same. Intel's Intrinsics Guide tells it
// otherwise, as one chain that begins with the destination: that is order 2. Order 1 is nobody's,
// and order 3 goes backwards in every other row, so that sides cannot be changed.
__attribute__((noinline)) static void multiply_row(float *sum, const uint8_t *row, uint8_t (*columns)[BYTES], int pairs, int backwards) {
  float even[FLOATS] = {0}, odd[FLOATS] = {0};
  for (int step = 0; step < pairs; ++step) {
    const int k = backwards ? pairs - 1 - step : step;
    const float a = widened(row + 4 * k), b = widened(row + 4 * k + 2);
    for (int n = 0; n < FLOATS; ++n) {
      const float c = widened(columns[k] + 4 * n), d = widened(columns[k] + 4 * n + 2);
      if (order == 2) {
        sum[n] = __builtin_fmaf(b, d, __builtin_fmaf(a, c, sum[n]));
      } else {
        even[n] = __builtin_fmaf(a, c, even[n]);
        odd[n] = __builtin_fmaf(b, d, odd[n]);
      }
    }
  }
  for (int n = 0; n < FLOATS && order != 2; ++n)
    sum[n] = backwards ? (sum[n] + odd[n]) + even[n] : sum[n] + (even[n] + odd[n]);
}

// Subnormal numbers count as zeros and become zeros, sums are rounded to nearest even, whatever the thread has set.
static void multiply(const struct Instruction *i) {
  const struct Config *c = &state.config;
  const int to = i->reg, a = i->rm, b = i->vvvv;
  if (to == a || to == b || a == b) refuse(i, "#UD", "its tiles %d, %d, %d are not three", to, a, b);
  need_tile(i, to), need_tile(i, a), need_tile(i, b);
  if (c->rows[to] != c->rows[a])
    refuse(i, "#UD", "the destination has %d rows, the first source %d", c->rows[to], c->rows[a]);
  if (c->colsb[to] != c->colsb[b])
    refuse(i, "#UD", "the destination has rows of %d bytes, the second source of %d", c->colsb[to], c->colsb[b]);
  if (c->colsb[a] / 4 != c->rows[b])
    refuse(i, "#UD", "the first source has %d pairs in a row, the second %d rows", c->colsb[a] / 4, c->rows[b]);
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(0x9fc0);  // flush to zero, denormals are zeros, to nearest, every exception masked
  for (int row = 0; row < c->rows[to]; ++row) {
    float sum[FLOATS];
    memcpy(sum, state.tile[to][row], BYTES);
    multiply_row(sum, state.tile[a][row], state.tile[b], c->rows[b], order == 1 || (order == 3 && row % 2));
    memcpy(state.tile[to][row], sum, c->colsb[to]);
  }
  _mm_setcsr(mode);
}

static void carry_out(const struct Instruction *i) {
  switch (i->kind) {
    case LDTILECFG: load_config(i); break;
    case STTILECFG: memcpy(i->memory + i->stride, &state.config, sizeof state.config); break;
    case TILERELEASE: memset(&state, 0, sizeof state); break;
    case TILEZERO:
      need_tile(i, i->reg);
      memset(state.tile[i->reg], 0, sizeof state.tile[0]);
      break;
    case TILELOADD:
    case TILELOADDT1: load_rows(i); break;
    case TILESTORED: store_rows(i); break;
    default: multiply(i);
  }
}

// The system puts the interrupted code's registers aside, those of floats and vectors too, and back when this returns.
static void on_sigill(int signal, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const bool sent = info->si_code <= 0;  // by somebody's kill()
  const struct Instruction i = sent ? (struct Instruction){.kind = OTHER} : decode(registers);
  if (i.kind == OTHER) {
    sigaction(SIGILL, &former, NULL);  // the instruction runs again, and meets the former handler
    if (sent) raise(signal);
    return;
  }
  carry_out(&i);
  __atomic_fetch_add(&counts[i.kind], 1, __ATOMIC_RELAXED);
  registers[REG_RIP] = (greg_t)i.next;
}

// For the tests.

enum Processor { LACKS_TILES, HAS_TILES, REFUSES_TILES, TOO_OLD };

// Whether tile instructions run by themselves. The system grants them to a process that asks; where it refuses, some of
// them run nevertheless, so that no emulation is possible. The arithmetic above needs AVX2 and FMA.
int qkv_tiles_processor(void) {
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
  unsigned a, b, c, d, low, high;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return TOO_OLD;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if (!(low >> 17 & 3)) return LACKS_TILES;
  const bool known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & 1 && d >> 24 & 1;  // AMX-BF16, AMX-TILE
  return known && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 ? HAS_TILES : REFUSES_TILES;
}

// 0, or -1 where the system refuses. Calls nest.
int qkv_tiles_install(void) {
  struct sigaction own;
  memset(&own, 0, sizeof own);
  own.sa_sigaction = on_sigill;
  own.sa_flags = SA_SIGINFO;  // on the thread's own stack: an alternate one may be too small for AVX-512's registers
  sigemptyset(&own.sa_mask);
  return installed++ ? 0 : sigaction(SIGILL, &own, &former);
}

void qkv_tiles_remove(void) {
  if (--installed == 0) sigaction(SIGILL, &former, NULL);
}

// How many instructions of a kind were carried out, in all threads, since the library was loaded.
unsigned qkv_tiles_count(int kind) { return __atomic_load_n(&counts[kind], __ATOMIC_RELAXED); }

// In which order products are added: 0 the manual's, 1 and 2 others that hardware might have chosen, 3 one
// that no engine can use.
void qkv_tiles_swap(int other) { order = other; }
