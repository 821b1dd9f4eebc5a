// GrowTree: one warp per row, whose lanes share the tokens that a draft may follow. The meaning is that of reference.py
// in this folder.

namespace peagle {

constexpr int kLanes = 32;
constexpr int kMostColumns = 64;
constexpr int kDeepest = 6;
constexpr float kLeast = -1e30f;

struct Grown {
  float scores[kMostColumns];
  int depths[kMostColumns], tried[kMostColumns];  // and how many of its candidates are drafts already
  i64 skipped[kMostColumns];
};

}  // namespace peagle

extern "C" __global__ void __launch_bounds__(32) grow_tree(
    const long long*, const long long* __restrict__ candidate_ids, const float* __restrict__ candidate_scores, int rows,
    int columns, int positions, int places, long long* __restrict__ window_ids, long long* __restrict__ skipped) {
  using namespace peagle;
  PEAGLE_SHARED(Grown, s);
  const int row = block_index(), lane = thread_index();
  if (row >= rows) return;
  candidate_ids += static_cast<i64>(row) * positions * places;
  candidate_scores += static_cast<i64>(row) * positions * places;
  window_ids += static_cast<i64>(row) * columns;
  skipped += static_cast<i64>(row) * columns;
  const int deepest = at_most(positions, kDeepest);
  for (int column = lane; column < columns; column += kLanes) skipped[column] = 0;
  if (lane == 0) {
    s.scores[0] = 0;
    s.depths[0] = s.tried[0] = 0;
    s.skipped[0] = 0;
  }
  sync_block();
  for (int column = 1; column < at_most(columns, kMostColumns); ++column) {
    u32 best = 0;  // the order of a score; none has 0
    int parent = 0;
    for (int at = lane; at < column; at += kLanes) {
      if (s.depths[at] >= deepest || s.tried[at] >= places) continue;
      const float own = candidate_scores[s.depths[at] * places + s.tried[at]];
      const u32 key = order(s.scores[at] + (own > kLeast ? own : kLeast));
      if (key > best) {
        best = key;
        parent = at;
      }
    }
    const u32 highest = warp_max(best);
    if (highest == 0) return;
    parent = static_cast<int>(warp_min(best == highest ? static_cast<u32>(parent) : 0xffffffffu));
    sync_block();  // all lanes have read what one of them changes
    if (lane == 0) {
      const int place = s.depths[parent] * places + s.tried[parent];
      const u64 between = (u64{1} << column) - (u64{2} << parent);
      ++s.tried[parent];
      s.scores[column] = unorder(highest);
      s.depths[column] = s.depths[parent] + 1;
      s.tried[column] = 0;
      s.skipped[column] = s.skipped[parent] + static_cast<i64>(between);
      window_ids[column] = candidate_ids[place];
      skipped[column] = s.skipped[column];
    }
    sync_block();
  }
}
