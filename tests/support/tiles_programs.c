// Small functions around tile instructions, written as the assembler spells them, for tests of tiles.c.
#include <stdint.h>
#include <string.h>

typedef struct {
  char *at;
  int64_t stride;
} Rows;

void configure(const void *config) { __asm__ volatile("ldtilecfg (%0)" : : "r"(config) : "memory"); }
void configuration(void *config) { __asm__ volatile("sttilecfg (%0)" : : "r"(config) : "memory"); }
void release(void) { __asm__ volatile("tilerelease"); }

#define LOAD(tile, x) __asm__ volatile("tileloadd (%0, %1, 1), %%tmm" #tile : : "r"((x)->at), "r"((x)->stride) : "memory")
#define STORE(tile, x) __asm__ volatile("tilestored %%tmm" #tile ", (%0, %1, 1)" : : "r"((x)->at), "r"((x)->stride) : "memory")

void load(const Rows *from) { LOAD(0, from); }
void store(const Rows *to) { STORE(0, to); }
void zero_0(void) { __asm__ volatile("tilezero %tmm0"); }
void zero_7(void) { __asm__ volatile("tilezero %tmm7"); }

// out = c + a b, by tiles 0, 1, 2.
void multiply(const Rows *c, const Rows *a, const Rows *b, const Rows *out) {
  LOAD(0, c);
  LOAD(1, a);
  LOAD(2, b);
  __asm__ volatile("tdpbf16ps %tmm2, %tmm1, %tmm0");
  STORE(0, out);
}

// The same by tiles 7, 3, 5.
void multiply_others(const Rows *c, const Rows *a, const Rows *b, const Rows *out) {
  LOAD(7, c);
  LOAD(3, a);
  LOAD(5, b);
  __asm__ volatile("tdpbf16ps %tmm5, %tmm3, %tmm7");
  STORE(7, out);
}

// The same with this MXCSR; returns what it is afterwards.
unsigned multiply_under(unsigned mode, const Rows *c, const Rows *a, const Rows *b, const Rows *out) {
  unsigned before, after;
  LOAD(0, c);
  LOAD(1, a);
  LOAD(2, b);
  __asm__ volatile(
      "stmxcsr %0\n\tldmxcsr %2\n\ttdpbf16ps %%tmm2, %%tmm1, %%tmm0\n\tstmxcsr %1\n\tldmxcsr %0"
      : "=m"(before), "=m"(after)
      : "m"(mode));
  STORE(0, out);
  return after;
}

// Loads of the rows that begin at `from` and lie `stride` apart into tile 6, and out of it again, by addresses of other forms.
#define LOAD_BY(name, instruction, base, offset, index, scale)                                             \
  void name(const char *from, int64_t stride, const Rows *to) {                                            \
    __asm__ volatile("movq %0, %%" base "\n\tmovq %1, %%" index "\n\t" instruction                         \
                     : : "r"(from - (offset)), "r"(stride / (scale)) : "memory", base, index);             \
    STORE(6, to);                                                                                          \
  }
LOAD_BY(load_hint, "tileloaddt1 (%%rdi, %%rsi, 1), %%tmm6", "rdi", 0, "rsi", 1)
LOAD_BY(load_upper, "tileloadd (%%r13, %%r12, 1), %%tmm6", "r13", 0, "r12", 1)
LOAD_BY(load_near, "tileloadd -64(%%r15, %%rcx, 2), %%tmm6", "r15", -64, "rcx", 2)
LOAD_BY(load_far, "tileloadd 4096(%%rdx, %%r9, 4), %%tmm6", "rdx", 4096, "r9", 4)
LOAD_BY(load_eighths, "tileloadd 8(%%r8, %%rax, 8), %%tmm6", "r8", 8, "rax", 8)
// Without an index register every row is the first one.
LOAD_BY(load_first, "tileloadd (%%r14), %%tmm6", "r14", 0, "rax", 1)

// Configurations by addresses of other forms.
static char shelf[64];
void configure_shelf(const void *config) {
  memcpy(shelf, config, 64);
  __asm__ volatile("ldtilecfg %0" : : "m"(shelf) : "memory");
}
void configure_without_base(const void *config) {
  __asm__ volatile("ldtilecfg 256(, %0, 2)" : : "r"(((intptr_t)config - 256) / 2) : "memory");
}
void configuration_indexed(char *config) {
  __asm__ volatile("sttilecfg -80(%0, %1, 8)" : : "r"(config), "r"((int64_t)10) : "memory");
}
void configuration_on_stack(void *config) {
  void *to = config;
  __asm__ volatile(
      "subq $320, %%rsp\n\tsttilecfg 64(%%rsp)\n\tleaq 64(%%rsp), %%rsi\n\tmovl $64, %%ecx\n\trep movsb\n\taddq $320, %%rsp"
      : "+D"(to) : : "memory", "rsi", "rcx", "cc");
}

// 1 if the carry flag, a vector register and the bytes below the stack pointer outlive an instruction.
__attribute__((naked)) int survivors(void) {
  __asm__(
      "movl $0x12345678, %edx\n\tmovd %edx, %xmm15\n\tmovq %rdx, -8(%rsp)\n\tstc\n\t"
      "tilezero %tmm0\n\t"
      "sbbl %eax, %eax\n\tmovd %xmm15, %ecx\n\tcmpl %edx, %ecx\n\tjne 1f\n\tcmpq %rdx, -8(%rsp)\n\tjne 1f\n\t"
      "negl %eax\n\tret\n1:\txorl %eax, %eax\n\tret");
}

// What raises #UD. The assembler spells none but the first.
void undefined(void) { __asm__ volatile("ud2"); }
void undefined_neighbour(void) { __asm__ volatile(".byte 0xc4, 0xe2, 0x7a, 0x49, 0xc0"); }       // F3 instead of F2
void undefined_ninth_tile(void) { __asm__ volatile(".byte 0xc4, 0x62, 0x7b, 0x49, 0xc0"); }      // tilezero tmm8
void undefined_without_sib(void) { __asm__ volatile(".byte 0xc4, 0xe2, 0x7b, 0x4b, 0x06"); }     // tileloadd [rsi]
void multiply_by_itself(void) { __asm__ volatile(".byte 0xc4, 0xe2, 0x72, 0x5c, 0xc1"); }        // tmm0, tmm1, tmm1
void multiply_only(void) { __asm__ volatile("tdpbf16ps %tmm2, %tmm1, %tmm0"); }
