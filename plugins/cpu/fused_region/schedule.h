// The phases of many runs as stages, and the threads that walk through them.

#include "kernel.h"

namespace peagle {

// Threads that walk through the same list of stages.  A stage's pieces are claimed one by one, and the next stage begins
// when all are done.  Who has claimed a piece does it; nobody is waited for who has not come.  So any number of threads
// may turn up, at any time, and one is enough.
//
// Pieces that follow each other read memory that does, and memory is read fastest in long runs.  So a stage's pieces are
// cut into as many lanes as threads came last time: a thread claims those of its own lane, in order, then those that are
// left of others.  It claims half of what is left at a time: a claim waits for a cache line that others have had.
class Walk {
 public:
  void clear() { stages_.clear(), parts_.clear(); }

  // Adds a phase: to the last stage, for each piece behind what that does of the same number, or as a stage of its own.
  void add(Run* run, int phase, bool joins) {
    if (!joins) stages_.push_back({parts_.size(), 0, 0});
    parts_.push_back({run, phase});
    stages_.back().count++;
  }

  // Before threads come, each time.
  void ready() {
    for (Stage& each : stages_) each.pieces = parts_[each.first].run->pieces(parts_[each.first].phase);
    const std::size_t came = came_.exchange(0, std::memory_order_relaxed);
    lanes_ = std::max<std::size_t>(came, 1);
    const std::size_t counts = stages_.size() * (lanes_ + 1);
    if (counts_.size() < counts) counts_ = std::vector<Count>(counts);
    for (std::size_t i = 0; i < stages_.size(); i++) {
      for (std::size_t lane = 0; lane < lanes_; lane++) {
        claimed(i, lane).store(end_of_lane(stages_[i].pieces, lane - 1), std::memory_order_relaxed);
      }
      done(i).store(0, std::memory_order_relaxed);
    }
    reached_.store(0, std::memory_order_release);
  }

  void walk() {
    if (reached_.load(std::memory_order_acquire) == stages_.size()) return;
    const std::size_t home = came_.fetch_add(1, std::memory_order_relaxed);
    for (std::size_t at = reached_.load(std::memory_order_acquire); at < stages_.size(); at++) {
      const Stage& stage = stages_[at];
      std::size_t mine = 0;
      for (std::size_t i = 0; i < lanes_; i++) {
        const std::size_t lane = (home + i) % lanes_, end = end_of_lane(stage.pieces, lane);
        std::atomic<std::size_t>& next = claimed(at, lane);
        for (std::size_t piece = next.load(std::memory_order_relaxed); piece < end;) {
          const std::size_t behind = piece + std::max<std::size_t>(1, (end - piece) / 2);
          if (!next.compare_exchange_weak(piece, behind, std::memory_order_relaxed)) continue;
          mine += behind - piece;
          for (; piece < behind; piece++) {
            for (std::size_t p = stage.first; p < stage.first + stage.count; p++) parts_[p].run->work(parts_[p].phase, piece);
          }
          piece = next.load(std::memory_order_relaxed);
        }
      }
      if (mine > 0) done(at).fetch_add(mine, std::memory_order_acq_rel);
      wait(done(at), stage.pieces);
      // Who comes late looks on from here, or from a little before.
      if (reached_.load(std::memory_order_relaxed) <= at) reached_.store(at + 1, std::memory_order_release);
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
  struct Count {
    alignas(64) std::atomic<std::size_t> pieces{0};  // in a cache line of its own
  };
  // The first piece of a stage's lane that nobody has claimed; how many of the stage are done.
  std::atomic<std::size_t>& claimed(std::size_t stage, std::size_t lane) {
    return counts_[stage * (lanes_ + 1) + lane].pieces;
  }
  std::atomic<std::size_t>& done(std::size_t stage) { return claimed(stage, lanes_); }

  // Of the lane before the first, 0.
  std::size_t end_of_lane(std::size_t pieces, std::size_t lane) const { return pieces * (lane + 1) / lanes_; }

  // What is waited for takes microseconds, unless its thread was put to sleep.
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
  std::vector<Count> counts_;  // of each stage those of its lanes, then what is done
  std::atomic<std::size_t> reached_{0}, came_{0};
  std::size_t lanes_ = 1;
};

}  // namespace peagle
