// What one worker holds while it works on a tile: rows, lanes and scratch. A tile is some query rows of one batch
// and all heads of one group; lane r * heads + h is row r of head h, so that neighbouring lanes read nearly the same
// keys. Lanes come in panels of one or two vectors; lanes past the last row repeat it and are never stored.
#pragma once
#include "../runtime.h"
#include "fetch.hpp"
#include "pack.hpp"
#include "range.hpp"
#include "tiles.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace {

// The most lanes for which other lanes than query rows pay (few.hpp), and the keys whose scores are then computed at once.
template <class T> constexpr int kFewRows = Real<T>::width < 4 ? 1 : Real<T>::width * 3 / 4;
template <class T> constexpr int kFewKeys = 4 * Real<T>::width;

// Hands out aligned pieces of one allocation; with a null base it only measures.
struct Arena {
  char *base;
  size_t used;
  bool overflow;
  template <class U> U *take(int64_t count) {
    size_t bytes = 0, next = 0;
    if (__builtin_mul_overflow(size_t(count), sizeof(U), &bytes) || bytes > SIZE_MAX / 4 ||
        __builtin_add_overflow(used, (bytes + kAlign - 1) / kAlign * kAlign, &next) || next > SIZE_MAX / 4) {
      overflow = true;
      return nullptr;
    }
    U *piece = base ? (U *)(base + used) : nullptr;
#if defined(__SANITIZE_ADDRESS__)
    // A gap behind each piece that nobody may touch.
    if (base) ASAN_POISON_MEMORY_REGION(base + used + bytes, next - used - bytes + kAlign);
    next += kAlign;
#endif
    used = next;
    return piece;
  }
};

QKV_INLINE int64_t times(int64_t a, int64_t b, bool *overflow) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) *overflow = true;
  return product;
}

template <class T> struct Lane {
  const char *bias, *allow;  // element of key 0
  int64_t position;          // among the keys
  T slope;                   // minus the alibi slope of the head
  int32_t row;               // in the tile
  int32_t head;              // among all query heads
  uint8_t flag;              // qkv_status so far
  uint8_t query_flag;        // what the query itself brings, once a key is allowed
  bool careful;              // its query has a subnormal number (pairs.hpp)
};

template <class U> QKV_INLINE void exchange(U &a, U &b) {
  const U c = a;
  a = b, b = c;
}

struct Panel {
  int64_t lane;        // its first
  int vectors;         // 1 or 2
  int64_t begin, end;  // hull of its keys in the block at hand, from the block's first key
  bool full;           // every lane may read all of that hull
  bool ranged;         // no row has more than one range in the block
  int64_t from[2], to[2];              // what each vector meets, as Spans says (product.hpp)
  int64_t clear_from[2], clear_to[2];  // and the keys there that each of its rows may read
  bool careful;        // a lane of it is
};

#if defined(__AVX512BF16__) && QKV_VECTOR_BYTES == 64
#define QKV_PAIRS 1
#else
#define QKV_PAIRS 0
#endif

// Whether scores go by pairs (pairs.hpp): a matter of dtype, width, instruction set and scale alone. The products lose what
// is smaller than float32's normal numbers, which a huge scale would show. Processors with matrix tiles have slow pairs.
template <class T> QKV_INLINE bool by_pairs(const qkv_call *call) {
  return QKV_PAIRS && sizeof(T) == 4 && call->key.dtype == QKV_BF16 && call->query.dtype == QKV_BF16 && call->D > 0 && call->D % 2 == 0 &&
         call->scale < 0x1p80 && call->scale > -0x1p80 && (!QKV_TILES || call->D % kTileDepth == 0);
}

template <class T> struct Work {
  typedef typename Real<T>::Int Int;
  const qkv_call *call;
  int64_t heads;        // query heads of a group
  int64_t tile_rows;    // rows of the largest tile
  int64_t lanes;        // of the largest tile, filled up to whole vectors
  int64_t block_rows;   // keys of the largest block
  T scale, softcap;

  // The tile at hand.
  int64_t n, g, row0, rows, origin, panels, last;  // no row reads a key from `last` on
  RowKeys *row;
  int32_t *low, *high;  // each row's only range, where there is one a row
  Lane<T> *lane;
  Panel *panel;
  T *query;             // per panel [D][lanes of the panel], scaled
  T *max, *sum, *mix;   // state of the split at hand; mix per panel [E][lanes]
  T *total_max, *total_sum, *total_mix;  // state of the finished splits

  // The block at hand: keys [first, first + count), of which [begin, end) are packed; of each row the hull [from, to) of those
  // that it may read, and whether that is one range.
  int64_t first, count, begin, end;
  int32_t *from, *to;
  bool *whole;
  T *key, *value;       // [block][D], [block][E]
  const T *key_rows, *value_rows;  // where these rows really are: there, or still with the caller; from w.first on
  uint8_t *bad;         // a row of key or value held a NaN or an infinity
  bool any_bad;
  bool checked;         // nothing of the tile is read before it was looked at
  bool key_unseen;      // the block's keys were not: what is wrong with them shows in the scores
  Fetch fetch;

  // Scores by pairs (pairs.hpp): queries per panel [D / 2][lanes], keys w.pair_stride bytes apart; keys with subnormals.
  bool pairs, any_careful;
  T *query_pairs;
  const char *pair_rows;
  int64_t pair_stride;
  uint8_t *careful;

  // Matrix tiles (tiles.hpp), where scores and mixture go by them; a whole tile of keys past the last whole one; and for the
  // mixture (mixture.hpp) the block's values in tiles, weights in three parts, rows of zeros, values that need care, and
  // mixtures of lanes that read one of those.
  Tiles tiles;
  bool tile_scores, tile_mixture, any_careful_value;
  char *tile_rows_copy;
  uint16_t *value_tiles, *own_values, *zeros;
  T *weight_parts, *value_pairs, *careful_mix;
  uint8_t *careful_value;
  const char **value_at;

  // A tile of a few lanes (few.hpp): how many, or 0; queries and mixtures row by row; some keys as columns; scores.
  int64_t few, few_depth, few_step;  // few_depth: of a query, in numbers or pairs, filled up to whole vectors
  T *few_query, *few_key, *few_score, *few_state, *few_next;

  // The panel at hand: [block][lanes].
  T *score, *bias;
  Int *mask;
  T *row_buffer;        // E numbers
  const int64_t *left_out;  // keys that lanes leave out besides, or -1 (shares.hpp); null: none

  static constexpr int64_t width = Real<T>::width;

  void lay_out(Arena *arena) {
    bool over = false;
    pairs = by_pairs<T>(call);
    tile_scores = QKV_TILES && pairs;
    tile_mixture = QKV_TILES && sizeof(T) == 4 && call->value.dtype == QKV_BF16 && call->E > 0 && call->E % kTileDepth == 0;
    const int64_t D = call->D, E = call->E, strip = (block_rows + kTileSide) * 2 * width;
    const int64_t groups = tile_mixture ? (block_rows + kTileDepth - 1) / kTileDepth : 0;
    row = arena->take<RowKeys>(tile_rows);
    low = arena->take<int32_t>(tile_rows), high = arena->take<int32_t>(tile_rows);
    from = arena->take<int32_t>(tile_rows), to = arena->take<int32_t>(tile_rows), whole = arena->take<bool>(tile_rows);
    lane = arena->take<Lane<T>>(lanes);
    panel = arena->take<Panel>(lanes / width);
    query = arena->take<T>(times(lanes, D, &over));
    mix = arena->take<T>(times(lanes, E, &over));
    total_mix = arena->take<T>(times(lanes, E, &over));
    max = arena->take<T>(lanes), sum = arena->take<T>(lanes);
    total_max = arena->take<T>(lanes), total_sum = arena->take<T>(lanes);
    key = arena->take<T>(times(block_rows, D, &over));
    value = arena->take<T>(times(block_rows, E, &over));
    bad = arena->take<uint8_t>(block_rows);
    score = arena->take<T>(strip);
    bias = arena->take<T>(call->bias.base ? strip : 0);
    mask = arena->take<Int>(strip);
    row_buffer = arena->take<T>(E);
    query_pairs = arena->take<T>(pairs ? times(lanes, D / 2, &over) : 0);
    careful = arena->take<uint8_t>(pairs ? block_rows : 0);
    tile_rows_copy = arena->take<char>(tile_scores ? times(kTileSide * 2, D, &over) : 0);
    value_tiles = arena->take<uint16_t>(times(groups * kTileDepth, E, &over));
    own_values = arena->take<uint16_t>(tile_mixture ? times(block_rows, E, &over) : 0);
    zeros = arena->take<uint16_t>(tile_mixture ? E : 0);
    weight_parts = arena->take<T>(groups * 3 * kTileSide * 2 * width);
    value_pairs = arena->take<T>(tile_mixture ? 4 * kTileSide * kTileSide : 0);
    careful_mix = arena->take<T>(tile_mixture ? times(2 * width, E, &over) : 0);
    careful_value = arena->take<uint8_t>(tile_mixture ? block_rows : 0);
    value_at = arena->take<const char *>(tile_mixture ? block_rows : 0);
    few_depth = ((pairs ? D / 2 : D) + width - 1) / width * width;
    few_step = (block_rows + 2 * kFewKeys<T> - 1) / kFewKeys<T> * kFewKeys<T>;
    few_query = arena->take<T>(times(few_depth, kFewRows<T>, &over));
    few_key = arena->take<T>(times(few_depth, kFewKeys<T>, &over));
    few_score = arena->take<T>(times(few_step, kFewRows<T>, &over));
    few_state = arena->take<T>(times(E, kFewRows<T>, &over));
    few_next = arena->take<T>(times(E, kFewRows<T>, &over));
    if (over) arena->overflow = true;
  }

  const char *key_row(int64_t j) const {
    return call->key.base + call->key.batch_offset[n] + g * call->key.stride[0] + j * call->key.stride[1];
  }
  const char *value_row(int64_t j) const {
    return call->value.base + call->value.batch_offset[n] + g * call->value.stride[0] + j * call->value.stride[1];
  }
};

}  // namespace
