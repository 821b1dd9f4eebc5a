// The memory plan of a program, for one set of input shapes: a buffer and an offset for each value.
//
// Steps run one after another, except token-wise steps: each processes a token as soon as the previous step has
// finished this token. A group consists of consecutive token-wise steps and the next step of another kind; it ends with
// a barrier. Memory is therefore reused between groups, but not within one.

#include "views.h"

namespace peagle {

// A step with its kernel, made once when the node is loaded.
struct LoadedStep {
  StepText text;
  const Op* op;                    // null for a view
  std::unique_ptr<Kernel> kernel;  // null for a view
  int end;                         // last step of its group
};

class Plan {
 public:
  struct Buffer {
    std::size_t bytes, offset;
    int first, last;  // lifetime: first step, and last step of the last group that uses the buffer
  };
  struct Copy {  // makes view `from` dense before step `before`
    int before, from, to;
  };
  struct Alias {  // an output that starts as a copy of an input, and is updated in place
    int input, output;
  };

  Plan(const Program& program, const std::vector<LoadedStep>& steps, const Inputs& inputs)
      : num_inputs_(program.inputs), values_(std::size_t(program.values)) {
    buffers.resize(inputs.size() + program.outputs.size());  // owned by the caller
    for (int i = 0; i < program.inputs; i++) values_[std::size_t(i)] = Value{inputs[std::size_t(i)], i, 0};
    for (int i = 0; i < int(steps.size()); i++) add(program, steps[std::size_t(i)], i);
    for (std::size_t i = 0; i < program.outputs.size(); i++) {
      const int value = program.outputs[i], buffer = output_buffer(i);
      if (values_[std::size_t(value)].buffer == buffer) continue;  // the step writes to the output directly
      copies.push_back({int(steps.size()), value, new_value(values_[std::size_t(value)].tensor, buffer)});
      extend_lifetime(value, int(steps.size()));
    }
    assign_offsets();
  }

  const Value& value(int at) const { return values_[std::size_t(at)]; }
  const std::vector<int>& inputs_of(int step) const { return inputs_[std::size_t(step)]; }
  const std::vector<int>& outputs_of(int step) const { return outputs_[std::size_t(step)]; }
  int output_buffer(std::size_t output) const { return num_inputs_ + int(output); }

  std::vector<Buffer> buffers;
  std::vector<Copy> copies;
  std::vector<Alias> aliases;
  std::size_t bytes = 0;  // total, without inputs and outputs

 private:
  void add(const Program& program, const LoadedStep& step, int at) {
    std::vector<int> given = step.text.inputs, made(step.text.outputs);
    if (step.op == nullptr) {
      if (given.empty() || given[0] < 0) refuse("step %s has no input", step.text.op.c_str());
      std::vector<Value> results;
      if (!make_view(step.text, values_[std::size_t(given[0])], values_, &results)) {
        given[0] = make_dense(given[0], at, step.end);
        if (!make_view(step.text, values_[std::size_t(given[0])], values_, &results))
          refuse("cannot make a view of a dense tensor");
      }
      if (made.size() != results.size()) refuse("step %s has the wrong number of outputs", step.text.op.c_str());
      for (std::size_t i = 0; i < made.size(); i++) {
        if (made[i] >= 0) values_[std::size_t(made[i])] = results[i];
      }
    } else {
      Inputs tensors(step.op->inputs.size());
      if (given.size() > tensors.size() || made.size() > step.op->outputs.size()) {
        refuse("step %s has too many inputs or outputs", step.op->name);
      }
      for (std::size_t i = 0; i < given.size(); i++) {
        if (given[i] < 0) continue;
        const bool may_be_view = step.kernel->takes_views();
        if (!may_be_view && !is_dense(values_[std::size_t(given[i])].tensor))
          given[i] = make_dense(given[i], at, step.end);
        tensors[i] = values_[std::size_t(given[i])].tensor;
        extend_lifetime(given[i], step.end);
      }
      for (std::size_t i = 0; i < tensors.size(); i++) {
        const Operand& operand = step.op->inputs[i];
        if (!tensors[i].is_there() && !operand.is_optional) refuse("step %s lacks a required input", step.op->name);
      }
      if (!fits(*step.op, tensors) && !has_form(step.op->name, tensors)) reject_types(*step.op, tensors);
      make_outputs(program, step, at, given, tensors, &made);
    }
    inputs_.push_back(given);
    outputs_.push_back(made);
  }

  void make_outputs(const Program& program, const LoadedStep& step, int at, const std::vector<int>& given,
                    const Inputs& tensors, std::vector<int>* made) {
    const Op& op = *step.op;
    std::vector<Shape> shapes(op.outputs.size());
    made->resize(op.outputs.size(), -1);
    for (std::size_t i = 0; i < shapes.size(); i++) {
      if (op.outputs[i].alias >= 0) shapes[i] = tensors[std::size_t(op.outputs[i].alias)].shape;
    }
    step.kernel->shapes(tensors, shapes.data());
    for (std::size_t i = 0; i < shapes.size(); i++) {
      const Operand& operand = op.outputs[i];
      int& value = (*made)[i];
      if (value < 0 && operand.is_optional) continue;
      const int type = operand.same_as >= 0 ? tensors[std::size_t(operand.same_as)].type : operand.type;
      const Tensor tensor(shapes[i], type, nullptr);
      if (ort::size_of(type) == 0) refuse("step %s has an output of unknown type", op.name);
      const auto found = std::find(program.outputs.begin(), program.outputs.end(), value);
      int buffer = -1;
      if (value >= 0 && found != program.outputs.end()) {
        buffer = output_buffer(std::size_t(found - program.outputs.begin()));
        if (operand.alias >= 0) aliases.push_back({given[std::size_t(operand.alias)], buffer});
      } else if (operand.alias >= 0) {
        buffer = values_[std::size_t(given[std::size_t(operand.alias)])].buffer;
      } else {
        buffer = new_buffer(tensor, at);
      }
      if (value < 0) {
        value = new_value(tensor, buffer);
      } else {
        values_[std::size_t(value)] = Value{tensor, buffer, 0};
      }
      extend_lifetime(value, step.end);
    }
  }

  [[noreturn]] static void reject_types(const Op& op, const Inputs& tensors) {
    std::size_t i = 0;
    while (op.inputs[i].type == ort::kAnyType || tensors[i].type == op.inputs[i].type || !tensors[i].is_there()) i++;
    refuse("input %d of step %s does not accept type %d", int(i), op.name, tensors[i].type);
  }

  int new_buffer(const Tensor& tensor, int first) {
    buffers.push_back({tensor.bytes(), 0, first, first});
    return int(buffers.size()) - 1;
  }
  int new_value(const Tensor& tensor, int buffer) {
    values_.push_back(Value{Tensor(tensor.shape, tensor.type, nullptr), buffer, 0});
    return int(values_.size()) - 1;
  }
  int make_dense(int value, int before, int end) {
    const Tensor tensor = values_[std::size_t(value)].tensor;
    if (tensor.type != ort::kFloat32) refuse("cannot make a view of type %d dense", tensor.type);
    const int to = new_value(tensor, new_buffer(tensor, before));
    copies.push_back({before, value, to});
    extend_lifetime(value, end);
    extend_lifetime(to, end);
    return to;
  }
  void extend_lifetime(int value, int last) {
    Buffer& buffer = buffers[std::size_t(values_[std::size_t(value)].buffer)];
    buffer.last = std::max(buffer.last, last);
  }

  // First fit: assigns each buffer the lowest offset that no buffer with an overlapping lifetime uses.
  void assign_offsets() {
    std::vector<const Buffer*> by_offset;  // sorted
    for (std::size_t i = std::size_t(output_buffer(0)); i < buffers.size(); i++) {
      Buffer& buffer = buffers[i];
      if (buffer.bytes == 0) continue;
      constexpr std::size_t kLine = 64;
      const std::size_t size = (buffer.bytes + kLine - 1) / kLine * kLine;
      std::size_t at = 0;
      for (const Buffer* other : by_offset) {
        if (other->last < buffer.first || other->first > buffer.last) continue;
        if (other->offset >= at + size) break;
        at = std::max(at, other->offset + (other->bytes + kLine - 1) / kLine * kLine);
      }
      buffer.offset = at;
      bytes = std::max(bytes, at + size);
      const auto starts_before = [](const Buffer* a, const Buffer* b) { return a->offset < b->offset; };
      by_offset.insert(std::upper_bound(by_offset.begin(), by_offset.end(), &buffer, starts_before), &buffer);
    }
  }

  const int num_inputs_;
  std::vector<Value> values_;
  std::vector<std::vector<int>> inputs_, outputs_;
};

}  // namespace peagle
