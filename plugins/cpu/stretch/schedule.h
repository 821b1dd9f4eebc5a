// The phases of many runs as stages, and the threads that walk through them.

#include "kernel.h"

namespace peagle {

// Threads that walk through the same list of stages.  A stage's pieces are claimed one by one, and the next stage begins
// when all are done.  Who has claimed a piece does it; nobody is waited for who has not come.  So any number of threads
// may turn up, at any time, and one is enough.
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
    if (counters_.size() < stages_.size()) counters_ = std::vector<Counter>(stages_.size());
    for (std::size_t i = 0; i < stages_.size(); i++) {
      counters_[i].next.store(0, std::memory_order_relaxed);
      counters_[i].done.store(0, std::memory_order_relaxed);
    }
    reached_.store(0, std::memory_order_release);
  }

  void walk() {
    for (std::size_t at = reached_.load(std::memory_order_acquire); at < stages_.size(); at++) {
      const Stage& stage = stages_[at];
      Counter& counter = counters_[at];
      std::size_t mine = 0;
      while (counter.next.load(std::memory_order_relaxed) < stage.pieces) {
        const std::size_t piece = counter.next.fetch_add(1, std::memory_order_relaxed);
        if (piece >= stage.pieces) break;
        for (std::size_t i = stage.first; i < stage.first + stage.count; i++) parts_[i].run->work(parts_[i].phase, piece);
        mine++;
      }
      if (mine > 0) counter.done.fetch_add(mine, std::memory_order_acq_rel);
      wait(counter, stage.pieces);
      reached_.store(at + 1, std::memory_order_release);  // who comes late looks on from here, or from a little before
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
    alignas(64) std::atomic<std::size_t> next{0};
    std::atomic<std::size_t> done{0};
  };

  // What is waited for takes microseconds, unless its thread was put to sleep.
  static void wait(const Counter& counter, std::size_t pieces) {
    for (int spins = 0; counter.done.load(std::memory_order_acquire) < pieces; spins++) {
      if (spins < 4000) {
#ifdef PEAGLE_X86_64
        _mm_pause();
#endif
      } else {
        sched_yield();
      }
    }
  }

  std::vector<Stage> stages_;
  std::vector<Part> parts_;
  std::vector<Counter> counters_;
  std::atomic<std::size_t> reached_{0};
};

}  // namespace peagle
