// The kernel for x86_64_v4_amx; CMakeLists.txt sets the instructions the compiler may use here.
#define QKV_LEVEL_ENTRY qkv_attend_x86_64_v4_amx
#include "kernel/attend.hpp"
#define QKV_LEVEL_BACKWARD qkv_backward_x86_64_v4_amx
#include "kernel/backward.hpp"
#define QKV_LEVEL_ANSWERS qkv_answers_x86_64_v4_amx
#include "kernel/answers.hpp"
#define QKV_LEVEL_SURVEY qkv_survey_x86_64_v4_amx
#include "kernel/survey.hpp"
#define QKV_LEVEL_KEEP qkv_keep_x86_64_v4_amx
#include "kernel/keep.hpp"
#define QKV_LEVEL_SHARES qkv_shares_x86_64_v4_amx
#include "kernel/shares.hpp"

#include "kernel/trial.hpp"
extern "C" bool qkv_try_tiles(void) { return try_tiles(); }
