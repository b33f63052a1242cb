// The steps of changes (FloatWord::Step): lengths and directions by an rANS coder (Duda 2013), several states
// in turn, and the low bits of long ones as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/delta/format.h"
#include "codec/delta/model.h"

namespace jaxccomp::delta {

int64_t MostStepBytes(int64_t changes);

// Scratch memory: of what a model says for each class.
class StepTables {
 public:
  void Set(const Model& model);
  struct Class {
    // By 2 * symbol + direction.
    uint16_t start[2 * kLengths], size[2 * kLengths];
    uint8_t found[1 << kLengthScaleBits];
  };
  const Class& operator[](int c) const { return classes_[c]; }

 private:
  Class classes_[kClasses];
};

std::byte* EncodeSteps(std::span<const Change> changes, const StepTables& tables, std::byte* at);
// `changes` have their classes. False where the bytes are no encoding of so many.
bool DecodeSteps(std::span<const std::byte> from, const Model& model, const StepTables& tables,
                 std::span<Change> changes);

}  // namespace jaxccomp::delta
