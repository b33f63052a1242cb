#include "cuda/host/stream_gates.h"

#include <atomic>
#include <utility>

namespace jaxccomp::cuda {

Result<uint64_t> StreamGates::Enter(CUstream_st* stream, bool holds) {
  StreamGate gate;
  if (!free_.empty()) {
    gate = free_.back();
    free_.pop_back();
  }
  gate.holds = holds;
  gate.reached = false;
  if (Status status = Place(&gate, stream); !status.ok()) {
    if (gate.event != nullptr) free_.push_back(gate);
    return status;
  }
  std::lock_guard lock(mutex_);
  entered_.emplace(next_, gate);
  return next_++;
}

Status StreamGates::Reserve(size_t calls) {
  while (free_.size() < calls) {
    StreamGate gate;
    gate.holds = true;
    if (Status status = Make(&gate); !status.ok()) return status;
    free_.push_back(gate);
  }
  return Status::Ok();
}

Status StreamGates::Failed(const char* what, int error) const {
  return {Code::kUnavailable, device_ + ": a caller's stream could not be marked: " + what +
                                  " failed: " + api_->Describe(error)};
}

Status StreamGates::Make(StreamGate* gate) {
  int error = CudaApi::kSuccess;
  if (gate->event == nullptr) error = api_->MakeEvent(&gate->event);
  if (error != CudaApi::kSuccess) return Failed("making an event", error);
  if (!gate->holds || gate->word != nullptr) return Status::Ok();
  gate->word = words_->Take(1, &error);
  if (gate->word == nullptr) return Failed("taking pinned memory", error);
  *gate->word = 0;
  return Status::Ok();
}

Status StreamGates::Place(StreamGate* gate, CUstream_st* stream) {
  if (Status status = Make(gate); !status.ok()) return status;
  int error = api_->Record(gate->event, stream);
  if (error != CudaApi::kSuccess) return Failed("recording an event", error);
  if (!gate->holds) return Status::Ok();
  error = api_->WaitAtLeast(stream, gate->word, gate->passed + 1);
  return error == CudaApi::kSuccess ? Status::Ok() : Failed("putting a wait", error);
}

int StreamGates::Query(uint64_t call) {
  StreamGate& gate = entered_.at(call);
  if (gate.reached) return CudaApi::kSuccess;
  const int error = api_->Query(gate.event);
  gate.reached = error == CudaApi::kSuccess;
  return error;
}

void StreamGates::Leave(uint64_t call) {
  std::lock_guard lock(mutex_);
  const auto found = entered_.find(call);
  StreamGate gate = found->second;
  entered_.erase(found);
  if (gate.holds) {
    std::atomic_ref<uint32_t>(*gate.word).store(++gate.passed, std::memory_order_release);
  }
  free_.push_back(gate);
}

void StreamGates::LetPass(uint64_t call) {
  std::lock_guard lock(mutex_);
  const auto found = entered_.find(call);
  if (found == entered_.end() || !found->second.holds) return;
  const StreamGate& gate = found->second;
  std::atomic_ref<uint32_t>(*gate.word).store(gate.passed + 1, std::memory_order_release);
}

}  // namespace jaxccomp::cuda
