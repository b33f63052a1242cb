// The callback at the end of an asynchronous transfer or operation.
#pragma once

#include "common/status.h"

namespace jaxccomp {

// Lives until Done is called, once.
class Completion {
 public:
  virtual void Done(Status status) = 0;

 protected:
  ~Completion() = default;
};

}  // namespace jaxccomp
