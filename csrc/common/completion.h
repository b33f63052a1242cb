// The callback at the end of an asynchronous transfer or operation.
#pragma once

#include "common/status.h"

namespace jaxccomp {

// Done is called exactly once; the object must live until then.
class Completion {
 public:
  virtual void Done(Status status) = 0;

 protected:
  ~Completion() = default;
};

}  // namespace jaxccomp
