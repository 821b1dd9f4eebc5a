// An operator that calls every interface function that kernels may use, and reports the results.

#include "call.h"

namespace peagle {

// self_test.py defines the operands, and checks the output `facts` f32 [2, 6]. The call fails if x[0] is negative.
class SelfTest : public Kernel {
 public:
  SelfTest(const SelfTestAttributes& attributes, const Node& node) : attributes_(attributes) {
    const Tensor constant = node.constant(1, "c");
    if (constant.type != ort::kInt32 || constant.shape.rank != 1 || constant.shape.count() != 3) {
      refuse("the constant int32 [3] has type %d and rank %d", constant.type, constant.shape.rank);
    }
    last_ = constant.data<const std::int32_t>()[2];
    ort::Status* status = ort::call(ort::kCreateStatus, 1, "probe");
    const bool same = ort::call(ort::kGetErrorCode, status) == 1 &&
                      std::strcmp(ort::call(ort::kGetErrorMessage, status), "probe") == 0;
    ort::call(ort::kReleaseStatus, status);
    if (!same) refuse("a status lost its code or message");
    if (attributes.text != "word" || attributes.absent_text != "default" || attributes.absent_whole != -5 ||
        attributes.absent_number != -0.5f) {
      refuse("the attributes are %s, %s, %lld, %g", attributes.text.c_str(), attributes.absent_text.c_str(),
             static_cast<long long>(attributes.absent_whole), double(attributes.absent_number));
    }
    if (node.constant_or_none(0).is_there()) refuse("an input is a constant");
  }

  void shapes(const Inputs& inputs, Shape* outputs) const override {
    if (inputs[0].shape.count() == 0 || inputs[0].data<const float>()[0] < 0) refuse("asked to fail");
    outputs[0] = Shape().with(2).with(6);
    outputs[2] = outputs[3] = inputs[0].shape;
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Made(*this, inputs, outputs));
  }

 private:
  static constexpr std::size_t kPieces = 97;

  struct Made : Run {
    Made(const SelfTest& test, const Inputs& inputs, const Outputs& outputs)
        : test(test), inputs(inputs), outputs(outputs) {}
    int phases() const override { return 2; }
    std::size_t pieces(int phase) const override { return phase == 0 ? kPieces : 1; }
    void work(int phase, std::size_t piece) override {
      if (phase == 0) {
        visits[piece]++;
        return;
      }
      int once = 0;
      for (const std::atomic<int>& each : visits) once += each == 1;
      const Tensor &x = inputs[0], &kept = outputs[1];
      const float facts[12] = {
          float(test.attributes_.whole),
          test.attributes_.number,
          float(test.last_),
          float(once),
          float(x.shape.rank),
          x.data<const float>()[x.shape.count() - 1],
          float(inputs[2].is_there()),
          float(inputs[3].data<const bool>()[0]),
          float(inputs[4].data<const std::int64_t>()[0]),
          float(outputs[2].is_there()),
          float(kept.type),
          float(kept.data<const std::uint8_t>()[kept.bytes() - 1]),
      };
      std::memcpy(outputs[0].address, facts, sizeof facts);
      kept.data<std::uint8_t>()[0] = 77;
      for (std::int64_t i = 0; i < x.shape.count(); i++) outputs[3].data<bool>()[i] = x.data<const float>()[i] > 3;
    }

    const SelfTest& test;
    const Inputs inputs;
    const Outputs outputs;
    std::atomic<int> visits[kPieces] = {};
  };

  SelfTestAttributes attributes_;
  std::int32_t last_ = 0;
};

}  // namespace peagle
