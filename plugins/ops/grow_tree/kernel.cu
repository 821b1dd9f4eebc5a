// GrowTree: see reference.py. One warp per row; lanes evaluate the possible parents of the next draft.

namespace peagle {

constexpr int kLanes = 32;
constexpr int kMaxColumns = 64;
constexpr int kMaxDepth = 6;
constexpr float kMinScore = -1e30f;

struct TreeState {
  float scores[kMaxColumns];
  int depths[kMaxColumns], num_tried[kMaxColumns];  // num_tried: candidates after this column that are already drafts
  i64 skipped[kMaxColumns];
};

}  // namespace peagle

extern "C" __global__ void __launch_bounds__(32) grow_tree(
    const long long*, const long long* __restrict__ candidate_ids, const float* __restrict__ candidate_scores, int rows,
    int columns, int positions, int candidates, long long* __restrict__ window_ids, long long* __restrict__ skipped) {
  using namespace peagle;
  PEAGLE_SHARED(TreeState, s);
  const int row = block_index(), lane = thread_index();
  if (row >= rows) return;
  candidate_ids += static_cast<i64>(row) * positions * candidates;
  candidate_scores += static_cast<i64>(row) * positions * candidates;
  window_ids += static_cast<i64>(row) * columns;
  skipped += static_cast<i64>(row) * columns;
  const int max_depth = at_most(positions, kMaxDepth);
  for (int column = lane; column < columns; column += kLanes) skipped[column] = 0;
  if (lane == 0) {
    s.scores[0] = 0;
    s.depths[0] = s.num_tried[0] = 0;
    s.skipped[0] = 0;
  }
  sync_block();
  for (int column = 1; column < at_most(columns, kMaxColumns); ++column) {
    u32 best = 0;  // a sort key; no score has key 0
    int parent = 0;
    for (int at = lane; at < column; at += kLanes) {
      if (s.depths[at] >= max_depth || s.num_tried[at] >= candidates) continue;
      const float score = candidate_scores[s.depths[at] * candidates + s.num_tried[at]];
      const u32 key = order(s.scores[at] + (score > kMinScore ? score : kMinScore));
      if (key > best) {
        best = key;
        parent = at;
      }
    }
    const u32 highest = warp_max(best);
    if (highest == 0) return;
    parent = static_cast<int>(warp_min(best == highest ? static_cast<u32>(parent) : 0xffffffffu));
    sync_block();  // all lanes have read s before lane 0 changes it
    if (lane == 0) {
      const int index = s.depths[parent] * candidates + s.num_tried[parent];
      const u64 skipped_between = (u64{1} << column) - (u64{2} << parent);
      ++s.num_tried[parent];
      s.scores[column] = unorder(highest);
      s.depths[column] = s.depths[parent] + 1;
      s.num_tried[column] = 0;
      s.skipped[column] = s.skipped[parent] + static_cast<i64>(skipped_between);
      window_ids[column] = candidate_ids[index];
      skipped[column] = s.skipped[column];
    }
    sync_block();
  }
}
