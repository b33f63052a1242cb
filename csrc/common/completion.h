// How whoever started something that takes a while hears of its end.
#pragma once

#include "common/status.h"

namespace jaxccomp {

// Lives until called once.
class Completion {
 public:
  virtual void Done(Status status) = 0;

 protected:
  ~Completion() = default;
};

}  // namespace jaxccomp
