#include "transport/cma/guards.h"

#include <sys/prctl.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>

namespace jaxccomp {

Status Guards::AllowReads() {
  // EINVAL: a kernel without Yama, which needs no permission.
  if (prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) == 0 || errno == EINVAL) return Status::Ok();
  return {Code::kUnavailable, std::string("prctl(PR_SET_PTRACER) failed: ") + std::strerror(errno)};
}

Guards::Guards() {
  // Random: a later process with the same pid must use other values.
  std::random_device random;
  next_ = static_cast<uint64_t>(random()) << 32 | random();
}

Guards::~Guards() {
  for (std::atomic<uint64_t>& word : words_) word.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

GuardMark Guards::Take() {
  if (spare_.empty()) spare_.push_back(&words_.emplace_back(0));
  std::atomic<uint64_t>* const word = spare_.back();
  spare_.pop_back();
  if (++next_ == 0) ++next_;
  // Readers learn of the guard from a message that is sent later, when all writes to the payload are complete.
  word->store(next_, std::memory_order_release);
  return {.address = reinterpret_cast<uint64_t>(word), .value = next_};
}

void Guards::Revoke(const GuardMark& mark) {
  auto* const word = reinterpret_cast<std::atomic<uint64_t>*>(mark.address);
  word->store(0, std::memory_order_relaxed);
  // The word must change before any later write to the guarded memory.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  spare_.push_back(word);
}

}  // namespace jaxccomp
