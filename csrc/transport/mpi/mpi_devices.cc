// Memory of devices, where MPI is CUDA-aware (transport.h).

#include <algorithm>
#include <string>
#include <thread>

#include "transport/mpi/mpi_transport.h"

namespace jaxccomp {

Status MpiTransport::CheckReachesDevices() const {
  const std::string why = mpi_->WhyNotCudaAware();
  return why.empty() ? Status::Ok() : Status(Code::kUnavailable, why);
}

bool MpiTransport::PullsIntoDevices(Announced announced) const {
  if (closed_ || announced.process < 0 || announced.process >= process_count()) return false;
  if (IsSmall(announced)) return false;
  const auto& all = peers_[static_cast<size_t>(announced.process)].incoming[announced.id >> 32];
  const auto it = all.find(static_cast<uint32_t>(announced.id));
  return it != all.end() && it->second.early == nullptr && it->second.bytes > kMostAlongBytes;
}

Status MpiTransport::StartExchange(bool receives, int process, std::span<const Piece> pieces,
                                   std::vector<MpiHandle>* requests) {
  if (process < 0) return Status::Ok();
  // In the units in which payloads go.
  const int64_t most_bytes = IsRemote(process) ? config_.remote_unit_bytes : config_.unit_bytes;
  for (const Piece& piece : pieces) {
    for (int64_t begin = 0; begin < piece.bytes; begin += most_bytes) {
      auto* const data = static_cast<std::byte*>(piece.data) + begin;
      const int bytes = static_cast<int>(std::min(most_bytes, piece.bytes - begin));
      MpiHandle request = 0;
      const int error = receives ? mpi_->Irecv(data, bytes, config_.byte_type, process, kExchangeTag,
                                               config_.comm, &request)
                                 : mpi_->Isend(data, bytes, config_.byte_type, process, kExchangeTag,
                                               config_.comm, &request);
      if (error != 0) return MpiError(receives ? "MPI_Irecv" : "MPI_Isend", process, error);
      requests->push_back(request);
    }
  }
  return Status::Ok();
}

Status MpiTransport::TestExchange(int process, std::vector<MpiHandle>* requests) {
  Status status;
  std::erase_if(*requests, [&](MpiHandle& request) {
    int completed = 0;
    const int error = mpi_->Test(&request, &completed);
    if (error != 0 && status.ok()) status = MpiError("MPI_Test", process, error);
    return error != 0 || completed != 0;
  });
  return status;
}

Transport::Exchanged MpiTransport::Exchange(int to, std::span<const Piece> sent, int from,
                                            std::span<const Piece> received,
                                            std::chrono::steady_clock::time_point deadline) {
  Exchanged told;
  if (closed_) {
    told.sent = told.received = {Code::kUnavailable, "the MPI transport is closed"};
    return told;
  }
  std::vector<MpiHandle> receives, sends;
  told.received = StartExchange(/*receives=*/true, from, received, &receives);
  told.sent = StartExchange(/*receives=*/false, to, sent, &sends);
  const auto test = [&](int process, std::vector<MpiHandle>* requests, Status* status) {
    Status found = TestExchange(process, requests);
    if (status->ok()) *status = std::move(found);
  };
  while (!receives.empty() || !sends.empty()) {
    test(from, &receives, &told.received);
    test(to, &sends, &told.sent);
    if (std::chrono::steady_clock::now() > deadline) break;
    std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
  const auto late = [&](int process, const char* what) {
    return Status(Code::kDeadlineExceeded, "messages " + std::string(what) + " process " +
                                               std::to_string(process) + " did not get through in time");
  };
  if (!sends.empty()) told.sent = late(to, "to");
  if (!receives.empty()) told.received = late(from, "from");
  return told;
}

}  // namespace jaxccomp
