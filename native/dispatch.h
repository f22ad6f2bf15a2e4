// The instruction levels of this machine, the slowest first.
#pragma once
#include "answers.h"
#include "backward.h"
#include "keep.h"
#include "qkv.h"
#include "shares.h"
#include "survey.h"

typedef struct qkv_level {
  const char *name;
  qkv_attend_fn attend;
  qkv_backward_fn backward;
  qkv_answers_fn answers;
  qkv_survey_fn survey;
  qkv_keep_fn keep;
  qkv_shares_fn shares;
} qkv_level;

// The levels that are built in and that processor and operating system support.
int qkv_levels(const qkv_level **levels);
// For tests in a process that carries out tile instructions the processor lacks: offers their level all the same. Says so
// before the levels are asked for the first time.
void qkv_assume_tiles(void);
// Names of all levels this build knows, supported here or not, separated by ", ".
const char *qkv_known_levels(void);
