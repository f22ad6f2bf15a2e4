// The kernel for portable; CMakeLists.txt sets the instructions the compiler may use here.
#define QKV_LEVEL_ENTRY qkv_attend_portable
#include "kernel/attend.hpp"
#define QKV_LEVEL_BACKWARD qkv_backward_portable
#include "kernel/backward.hpp"
#define QKV_LEVEL_ANSWERS qkv_answers_portable
#include "kernel/answers.hpp"
#define QKV_LEVEL_SURVEY qkv_survey_portable
#include "kernel/survey.hpp"
#define QKV_LEVEL_KEEP qkv_keep_portable
#include "kernel/keep.hpp"
#define QKV_LEVEL_SHARES qkv_shares_portable
#include "kernel/shares.hpp"
