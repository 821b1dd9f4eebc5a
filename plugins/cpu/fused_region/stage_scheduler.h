// A work-stealing scheduler: the phases of many runs become stages, which threads execute in order.

#include "kernel.h"

namespace peagle {

// Threads claim the pieces of a stage and execute them; a barrier ends each stage. The barrier waits only for claimed
// pieces, never for a thread that has not arrived, so any number of threads may join at any time, and one is enough.
//
// Consecutive pieces read consecutive memory, which is fastest in long runs. The pieces of a stage are therefore split
// into lanes, one per thread of the previous execution. A thread first takes the pieces of its own lane, in order, then
// steals from the other lanes. Each claim takes half of the lane's remaining pieces, because a claim transfers a cache
// line between cores.
class StageScheduler {
 public:
  void clear() { stages_.clear(), parts_.clear(); }

  // Adds a phase as a new stage, or appends it to the last stage: each piece then executes the phases of the stage one
  // after another, without a barrier between them.
  void add(Run* run, int phase, bool joins_last) {
    if (!joins_last) stages_.push_back({parts_.size(), 0, 0});
    parts_.push_back({run, phase});
    stages_.back().count++;
  }

  // Must be called before each execution, while no thread participates.
  void reset() {
    for (Stage& each : stages_) each.pieces = parts_[each.first].run->pieces(parts_[each.first].phase);
    const std::size_t participants = participants_.exchange(0, std::memory_order_relaxed);
    lanes_ = std::max<std::size_t>(participants, 1);
    const std::size_t num_counters = stages_.size() * (lanes_ + 1);
    if (counters_.size() < num_counters) counters_ = std::vector<Counter>(num_counters);
    for (std::size_t i = 0; i < stages_.size(); i++) {
      for (std::size_t lane = 0; lane < lanes_; lane++) {
        next_piece(i, lane).store(end_of_lane(stages_[i].pieces, lane - 1), std::memory_order_relaxed);
      }
      done(i).store(0, std::memory_order_relaxed);
    }
    current_stage_.store(0, std::memory_order_release);
  }

  // Called by each thread. Returns when all stages are done.
  void participate() {
    if (current_stage_.load(std::memory_order_acquire) == stages_.size()) return;
    const std::size_t own_lane = participants_.fetch_add(1, std::memory_order_relaxed);
    for (std::size_t at = current_stage_.load(std::memory_order_acquire); at < stages_.size(); at++) {
      const Stage& stage = stages_[at];
      std::size_t num_done = 0;
      for (std::size_t i = 0; i < lanes_; i++) {
        const std::size_t lane = (own_lane + i) % lanes_, end = end_of_lane(stage.pieces, lane);
        std::atomic<std::size_t>& next = next_piece(at, lane);
        for (std::size_t piece = next.load(std::memory_order_relaxed); piece < end;) {
          const std::size_t claim_end = piece + std::max<std::size_t>(1, (end - piece) / 2);
          if (!next.compare_exchange_weak(piece, claim_end, std::memory_order_relaxed)) continue;
          num_done += claim_end - piece;
          for (; piece < claim_end; piece++) {
            for (std::size_t p = stage.first; p < stage.first + stage.count; p++)
              parts_[p].run->work(parts_[p].phase, piece);
          }
          piece = next.load(std::memory_order_relaxed);
        }
      }
      if (num_done > 0) done(at).fetch_add(num_done, std::memory_order_acq_rel);
      wait(done(at), stage.pieces);
      // Threads that arrive late start at this stage. Concurrent stores may set it back by a few stages, which only
      // costs these threads time: all pieces of earlier stages are claimed.
      if (current_stage_.load(std::memory_order_relaxed) <= at) current_stage_.store(at + 1, std::memory_order_release);
    }
  }

 private:
  struct Part {
    Run* run;
    int phase;
  };
  struct Stage {
    std::size_t first, count, pieces;
  };
  struct Counter {
    alignas(64) std::atomic<std::size_t> pieces{0};  // on its own cache line, to avoid false sharing
  };
  // The first unclaimed piece of a lane.
  std::atomic<std::size_t>& next_piece(std::size_t stage, std::size_t lane) {
    return counters_[stage * (lanes_ + 1) + lane].pieces;
  }
  // The number of finished pieces of a stage.
  std::atomic<std::size_t>& done(std::size_t stage) { return next_piece(stage, lanes_); }

  // The end of lane -1 is 0.
  std::size_t end_of_lane(std::size_t pieces, std::size_t lane) const { return pieces * (lane + 1) / lanes_; }

  // Spins first: the remaining pieces take microseconds, unless the system preempted their thread.
  static void wait(const std::atomic<std::size_t>& done, std::size_t pieces) {
    for (int spins = 0; done.load(std::memory_order_acquire) < pieces; spins++) {
      if (spins < 4000) {
#ifdef PEAGLE_X86_64
        __builtin_ia32_pause();
#endif
      } else {
        sched_yield();
      }
    }
  }

  std::vector<Stage> stages_;
  std::vector<Part> parts_;
  std::vector<Counter> counters_;  // [stages, lanes + 1]: each lane's first unclaimed piece, then the finished pieces
  std::atomic<std::size_t> current_stage_{0}, participants_{0};
  std::size_t lanes_ = 1;
};

}  // namespace peagle
