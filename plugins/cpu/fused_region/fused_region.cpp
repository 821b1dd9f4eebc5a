// FusedRegion: executes a sequence of graph nodes as one node, inside a single parallel loop.

#include "plan.h"
#include "stage_scheduler.h"
#include "shared_scratch.h"

namespace peagle {

// Copies a strided view to a dense tensor.
class DenseCopy : public steps::TokenRun {
 public:
  DenseCopy(const Tensor& from, const Tensor& to)
      : TokenRun(steps::rows_of(to.shape)), from_(from, to.shape), to_(to, to.shape), count_(to.shape.last()) {}
  void token(std::int64_t at) override {
    std::memcpy(to_.at(at), from_.at(at), std::size_t(count_) * sizeof(float));
  }

 private:
  const steps::Rows from_, to_;
  const std::int64_t count_;
};

class FusedRegion : public Kernel {
 public:
  FusedRegion(const FusedRegionAttributes& attributes, const Node& node)
      : program_(attributes.program, int(attributes.inputs)) {
    for (const StepText& text : program_.steps) {
      LoadedStep step{text, nullptr, nullptr, 0};
      if (!is_view(text.op)) {
        step.op = &find_op(text.op);
        step.kernel = step.op->make(StepNode(text, node, program_.inputs));
      }
      if (text.op == "Reshape" && text.inputs.size() > 1) {
        if (text.inputs[1] < 0 || text.inputs[1] >= program_.inputs)
          refuse("the target shape of a Reshape must be an input");
        shape_inputs_.push_back(text.inputs[1]);
      }
      steps_.push_back(std::move(step));
    }
    for (int i = 0; i < program_.inputs; i++) {
      if (!node.constant_or_none(std::size_t(i)).is_there()) varying_inputs_.push_back(i);
    }
    int end = int(steps_.size()) - 1;
    for (int i = end; i >= 0; i--) {
      LoadedStep& step = steps_[std::size_t(i)];
      if (step.kernel != nullptr && !step.kernel->is_token_wise()) end = i;
      step.end = end;
    }
  }

  void shapes(const Inputs& inputs, Shape* outputs) const override {
    std::unique_ptr<Workspace> workspace = acquire_workspace(inputs);
    for (std::size_t i = 0; i < program_.outputs.size(); i++) {
      outputs[i] = workspace->plan->value(program_.outputs[i]).tensor.shape;
    }
    release_workspace(std::move(workspace));
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    std::unique_ptr<Workspace> workspace = acquire_workspace(inputs);
    workspace->begin(*this, inputs, outputs);
    return std::unique_ptr<Run>(new RegionRun(*this, std::move(workspace)));
  }

 private:
  // The state of one execution, reused by the next one with the same input shapes: the memory plan, the memory, and the
  // steps' runs, which are valid as long as the inputs and outputs keep their addresses.
  struct Workspace {
    std::vector<std::int64_t> key;  // input types and shapes that the plan was made for
    std::unique_ptr<Plan> plan;
    std::unique_ptr<Scratch> value_memory, scratch;
    std::size_t shared_bytes = 0;   // of the scratch region that steps use in turn
    std::vector<void*> addresses;   // of the inputs and outputs that `runs` refer to
    std::vector<std::unique_ptr<Run>> runs;
    std::vector<std::pair<Run*, int>> dynamic_runs;  // whose phases (and scratch) depend on control values
    StageScheduler scheduler;

    std::size_t bytes() const {
      return (value_memory != nullptr ? value_memory->bytes() : 0) + (scratch != nullptr ? scratch->bytes() : 0);
    }
    // Gives the memory to other regions. The next execution must rebuild the runs.
    void release_memory() {
      addresses.clear();
      runs.clear();
      SharedScratch::release(std::move(value_memory));
      SharedScratch::release(std::move(scratch));
    }

    void begin(const FusedRegion& region, const Inputs& inputs, const Outputs& outputs) {
      for (const Plan::Alias& alias : plan->aliases) {
        const Tensor& from = inputs[std::size_t(alias.input)];
        const Tensor to = outputs[std::size_t(alias.output - plan->output_buffer(0))];
        if (from.address != to.address) std::memcpy(to.address, from.address, from.bytes());
      }
      if (!reuse_runs(inputs, outputs)) make_runs(region, inputs, outputs);
      scheduler.reset();
    }

   private:
    // Prepares the existing runs for another execution; returns false if they must be rebuilt.
    bool reuse_runs(const Inputs& inputs, const Outputs& outputs) {
      std::size_t at = 0;
      bool same = addresses.size() == inputs.size() + outputs.size();
      addresses.resize(inputs.size() + outputs.size());
      for (const std::vector<Tensor>* tensors : {&inputs, &outputs}) {
        for (const Tensor& each : *tensors) {
          same = same && addresses[at] == each.address;
          addresses[at++] = each.address;
        }
      }
      if (!same) return false;
      for (const auto& each : runs) each->steer();
      for (const auto& each : dynamic_runs) {
        if (each.first->phases() != each.second || each.first->scratch_bytes() > shared_bytes) return false;
      }
      return true;
    }

    void make_runs(const FusedRegion& region, const Inputs& inputs, const Outputs& outputs) {
      runs.clear();
      dynamic_runs.clear();
      scheduler.clear();
      if (value_memory == nullptr) value_memory = SharedScratch::acquire(plan->bytes);
      StageBuilder builder{*this, inputs, outputs};
      std::size_t copy = 0;
      for (int i = 0; i <= int(region.steps_.size()); i++) {
        for (; copy < plan->copies.size() && plan->copies[copy].before == i; copy++) {
          const Plan::Copy& each = plan->copies[copy];
          const Tensor from = builder.tensor(each.from), to = builder.tensor(each.to);
          builder.add(new DenseCopy(from, to), {from}, {to}, true);
        }
        if (i < int(region.steps_.size())) builder.add(region.steps_[std::size_t(i)], i);
      }
      if (scratch == nullptr || scratch->bytes() < builder.scratch_bytes()) {
        scratch = SharedScratch::acquire(builder.scratch_bytes());
      }
      builder.place_scratch();
    }
  };

  // A lock-free pool of idle workspaces. Decoding rounds alternate between a few shapes (the drafter's input depends on
  // the number of accepted tokens; requests start and finish), and planning takes as long as running a small graph.
  // Slot 0 holds the last large workspace, without its memory: a model with experts has one region per layer, and
  // regions share large memory (SharedScratch).
  class WorkspacePool {
   public:
    WorkspacePool() { SharedScratch::num_users()++; }
    ~WorkspacePool() {
      for (auto& each : slots_) delete each.load();
      if (--SharedScratch::num_users() == 0) SharedScratch::clear();
    }
    WorkspacePool(const WorkspacePool&) = delete;
    // Returns a workspace with this key, or null.
    std::unique_ptr<Workspace> acquire(const std::vector<std::int64_t>& key) {
      for (auto& each : slots_) {
        std::unique_ptr<Workspace> candidate(each.exchange(nullptr));
        if (candidate == nullptr) continue;
        if (candidate->key == key) return candidate;
        Workspace* expected = nullptr;
        if (each.compare_exchange_strong(expected, candidate.get())) candidate.release();
      }
      return nullptr;
    }
    void release(std::unique_ptr<Workspace> workspace) {
      if (workspace->bytes() > kLarge) {
        workspace->release_memory();
        delete slots_[0].exchange(workspace.release());
        return;
      }
      for (std::size_t i = 1; i < kSlots; i++) {
        Workspace* expected = nullptr;
        if (slots_[i].compare_exchange_strong(expected, workspace.get())) {
          workspace.release();
          return;
        }
      }
      delete slots_[1 + next_victim_.fetch_add(1) % (kSlots - 1)].exchange(workspace.release());
    }

   private:
    static constexpr std::size_t kSlots = 17, kLarge = 2 << 20;
    std::atomic<Workspace*> slots_[kSlots] = {};
    std::atomic<std::size_t> next_victim_{0};
  };

  // Turns the phases of the steps' runs into stages, and assigns scratch memory. Steps that are not token-wise share
  // one region at offset 0, because a barrier separates them. The scratch of token-wise steps follows this region; its
  // space is reused after each group (plan.h).
  struct StageBuilder {
    Workspace& workspace;
    const Inputs& inputs;
    const Outputs& outputs;
    Tokens last_tokens = Tokens::kNone;  // how the last stage splits into pieces; kNone: nothing may join it
    std::size_t pieces = 0;                  // of the last stage
    std::vector<Tensor> written{};           // outputs of the last stage
    std::vector<std::pair<Run*, std::size_t>> scratch_users{};  // offset + 1 in the token-wise region; 0: shared region
    std::size_t shared_bytes = 0, token_wise_bytes = 0, max_token_wise_bytes = 0;

    Tensor tensor(int value) const {
      Tensor result;
      if (value < 0) return result;
      const Value& placement = workspace.plan->value(value);
      result = placement.tensor;
      char* base = nullptr;
      if (placement.buffer < int(inputs.size())) {
        base = inputs[std::size_t(placement.buffer)].data<char>();
      } else if (placement.buffer < int(inputs.size() + outputs.size())) {
        base = outputs[std::size_t(placement.buffer) - inputs.size()].data<char>();
      } else {
        base = static_cast<char*>(workspace.value_memory->get()) +
               workspace.plan->buffers[std::size_t(placement.buffer)].offset;
      }
      result.address = base + std::size_t(placement.offset) * ort::size_of(result.type);
      return result;
    }

    void add(const LoadedStep& step, int at) {
      if (step.kernel == nullptr) return;
      Inputs from(step.op->inputs.size());
      Outputs to(step.op->outputs.size());
      const std::vector<int>& given = workspace.plan->inputs_of(at);
      for (std::size_t i = 0; i < given.size(); i++) from[i] = tensor(given[i]);
      for (std::size_t i = 0; i < to.size(); i++) to[i] = tensor(workspace.plan->outputs_of(at)[i]);
      add(step.kernel->start(from, to).release(), from, to, step.kernel->is_token_wise());
    }

    void add(Run* owned, const std::vector<Tensor>& from, const std::vector<Tensor>& to, bool is_token_wise) {
      workspace.runs.emplace_back(owned);
      Run& run = *owned;
      run.steer();
      const int phases = run.phases();
      if (!is_token_wise) workspace.dynamic_runs.emplace_back(&run, phases);
      for (int phase = 0; phase < phases; phase++) {
        const Tokens order = run.tokens(phase);
        const bool needs_barrier = order == Tokens::kNone || (!is_token_wise && phase + 1 == phases);
        const bool joins =
            !needs_barrier && last_tokens == order && run.pieces(phase) == pieces && (phase > 0 || fits(from));
        workspace.scheduler.add(&run, phase, joins);
        if (!joins) written.clear();
        written.insert(written.end(), to.begin(), to.end());
        last_tokens = needs_barrier ? Tokens::kNone : order;
        pieces = run.pieces(phase);
      }
      constexpr std::size_t kLine = 64;
      const std::size_t bytes = (run.scratch_bytes() + kLine - 1) / kLine * kLine;
      scratch_users.emplace_back(&run, is_token_wise ? token_wise_bytes + 1 : 0);
      if (is_token_wise) {
        token_wise_bytes += bytes;
        max_token_wise_bytes = std::max(max_token_wise_bytes, token_wise_bytes);
      } else {
        shared_bytes = std::max(shared_bytes, bytes);
        token_wise_bytes = 0;
      }
    }

    // Returns true if each piece that reads `from` depends only on the piece with the same number of the last stage.
    bool fits(const std::vector<Tensor>& from) const {
      if (pieces <= 1) return true;
      for (const Tensor& read : from) {
        for (const Tensor& wrote : written) {
          if (read.is_there() && wrote.is_there() && overlap(read, wrote) && !is_same_token(read, wrote)) return false;
        }
      }
      return true;
    }
    static bool overlap(const Tensor& read, const Tensor& wrote) {
      const char *a = read.data<const char>(), *b = wrote.data<const char>();
      return a < b + wrote.bytes() && b < a + extent_bytes(read);
    }
    static std::size_t extent_bytes(const Tensor& tensor) {
      std::int64_t last = 0;
      for (int i = 0; i < tensor.shape.rank; i++) last += (tensor.shape.sizes[i] - 1) * tensor.strides[i];
      return std::size_t(last + 1) * ort::size_of(tensor.type);
    }
    bool is_same_token(const Tensor& read, const Tensor& wrote) const {
      if (!is_dense(wrote)) return false;
      if (read.address == wrote.address && read.shape == wrote.shape && is_dense(read)) return true;
      if (last_tokens != Tokens::kRows) return false;
      // Contiguous rows, one per piece, and views into them that do not cross rows.
      const std::int64_t row = wrote.shape.count() / std::int64_t(pieces);
      std::int64_t within = read.data<const float>() - wrote.data<const float>(), rows = 1;
      if (within < 0) return false;
      for (int i = read.shape.rank - 1; i >= 0; i--) {
        const std::int64_t size = read.shape.sizes[i];
        if (size == 1) continue;
        if (rows == 1 && read.strides[i] < row) {
          within += (size - 1) * read.strides[i];
        } else if (read.strides[i] == row * rows) {
          rows *= size;
        } else {
          return false;
        }
      }
      return within < row && rows == std::int64_t(pieces);
    }

    std::size_t scratch_bytes() const { return shared_bytes + max_token_wise_bytes; }
    void place_scratch() const {
      workspace.shared_bytes = shared_bytes;
      char* base = static_cast<char*>(workspace.scratch->get());
      for (const auto& each : scratch_users)
        each.first->use_scratch(each.second == 0 ? base : base + shared_bytes + each.second - 1);
    }
  };

  class RegionRun : public Run {
   public:
    RegionRun(const FusedRegion& region, std::unique_ptr<Workspace> workspace)
        : region_(region), workspace_(std::move(workspace)) {}
    ~RegionRun() override { region_.release_workspace(std::move(workspace_)); }
    int phases() const override { return 1; }
    // At least one per thread: each piece is one thread's participation. A thread that arrives late returns at once.
    std::size_t pieces(int) const override { return kMaxThreads; }
    void work(int, std::size_t) override { workspace_->scheduler.participate(); }

   private:
    static constexpr std::size_t kMaxThreads = 64;
    const FusedRegion& region_;
    std::unique_ptr<Workspace> workspace_;
  };

  static const Op& find_op(const std::string& name) {
    for (const Op& each : steps::step_ops()) {
      if (name == each.name) return each;
    }
    return op_named(name);
  }

  // Returns a pooled workspace for these types and shapes, or a new one.
  std::unique_ptr<Workspace> acquire_workspace(const Inputs& inputs) const {
    if (int(inputs.size()) != program_.inputs)
      refuse("the program needs %d inputs, but the node has %d", program_.inputs, int(inputs.size()));
    std::vector<std::int64_t> key;
    for (int at : varying_inputs_) {
      const Tensor& each = inputs[std::size_t(at)];
      key.push_back(each.type * (kMaxRank + 1) + each.shape.rank);
      key.insert(key.end(), each.shape.sizes, each.shape.sizes + each.shape.rank);
    }
    for (int each : shape_inputs_) {
      const Tensor& sizes = inputs[std::size_t(each)];
      if (sizes.type != ort::kInt64) refuse("the target shape of a Reshape must be int64");
      key.insert(key.end(), sizes.data<const std::int64_t>(), sizes.data<const std::int64_t>() + sizes.shape.count());
    }
    std::unique_ptr<Workspace> workspace = pool_.acquire(key);
    if (workspace == nullptr) {
      workspace.reset(new Workspace);
      workspace->plan.reset(new Plan(program_, steps_, inputs));
      workspace->key = std::move(key);
    }
    return workspace;
  }
  void release_workspace(std::unique_ptr<Workspace> workspace) const { pool_.release(std::move(workspace)); }

  const Program program_;
  std::vector<LoadedStep> steps_;
  std::vector<int> shape_inputs_;    // inputs that are the target shape of a Reshape
  std::vector<int> varying_inputs_;  // inputs that are not constants
  mutable WorkspacePool pool_;
};

}  // namespace peagle
