#include "cuda/marks.h"

#include <atomic>
#include <utility>

namespace jaxccomp::cuda {

Result<uint64_t> Marks::Enter(CUstream_st* stream) {
  Mark mark;
  if (!free_.empty()) {
    mark = free_.back();
    free_.pop_back();
  }
  mark.reached = false;
  if (Status status = Place(&mark, stream); !status.ok()) {
    if (mark.event != nullptr) free_.push_back(mark);
    return status;
  }
  entered_.emplace(next_, mark);
  return next_++;
}

Status Marks::Place(Mark* mark, CUstream_st* stream) {
  const auto failed = [&](const char* what, int error) {
    return Status(Code::kUnavailable, device_ + ": a caller's stream could not be marked: " + what +
                                          " failed: " + api_->Describe(error));
  };
  int error = CudaApi::kSuccess;
  if (mark->event == nullptr) error = api_->MakeEvent(&mark->event);
  if (error != CudaApi::kSuccess) return failed("making an event", error);
  if (mark->word == nullptr) {
    mark->word = words_->Take(1, &error);
    if (mark->word == nullptr) return failed("taking pinned memory", error);
    *mark->word = 0;
  }
  error = api_->Record(mark->event, stream);
  if (error != CudaApi::kSuccess) return failed("recording an event", error);
  error = api_->WaitAtLeast(stream, mark->word, mark->passed + 1);
  if (error != CudaApi::kSuccess) return failed("putting a wait", error);
  return Status::Ok();
}

int Marks::Query(uint64_t call) {
  Mark& mark = entered_.at(call);
  if (mark.reached) return CudaApi::kSuccess;
  const int error = api_->Query(mark.event);
  mark.reached = error == CudaApi::kSuccess;
  return error;
}

void Marks::Leave(uint64_t call) {
  const auto found = entered_.find(call);
  Mark mark = found->second;
  entered_.erase(found);
  std::atomic_ref<uint32_t>(*mark.word).store(++mark.passed, std::memory_order_release);
  free_.push_back(mark);
}

}  // namespace jaxccomp::cuda
