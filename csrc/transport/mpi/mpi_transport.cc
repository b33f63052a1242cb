#include "transport/mpi/mpi_transport.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "common/interrupts.h"
#include "transport/pieces.h"

namespace jaxccomp {
namespace {

constexpr int64_t kControlBytes = static_cast<int64_t>(sizeof(Header)) + MpiTransport::kEagerBytes;

// Each MPI_Test also drives MPI's progress, so a few per poll are enough, and keep polling
// cheap when much is under way.
constexpr size_t kTestsPerPoll = 16;

// Removes element i of a vector whose order does not matter, and returns it.
template <typename T>
T SwapOut(std::vector<T>* items, size_t i) {
  T item = std::move((*items)[i]);
  if (i + 1 != items->size()) (*items)[i] = std::move(items->back());
  items->pop_back();
  return item;
}

}  // namespace

Result<std::unique_ptr<MpiTransport>> MpiTransport::Create(const MpiConfig& config,
                                                           Receiver* receiver) {
  Result<const MpiLibrary*> library = MpiLibrary::Load();
  if (!library.ok()) return library.status();
  const MpiLibrary* mpi = library.value();
  if (mpi->Finalized()) {
    return Status{Code::kFailedPrecondition, "MPI (" + mpi->path() + ") has been finalized"};
  }
  if (!mpi->ThreadMultiple()) {
    return Status{Code::kFailedPrecondition,
                  "MPI was initialised without MPI_THREAD_MULTIPLE, which jaxccomp needs: leave "
                  "mpi4py.rc.threads and mpi4py.rc.thread_level at their defaults"};
  }
  for (int64_t bytes : {config.unit_bytes, config.remote_unit_bytes}) {
    if (bytes >= 1 && bytes <= INT32_MAX) continue;
    return Status{Code::kInvalidArgument,
                  "unit_bytes must be in 1..2147483647, not " + std::to_string(bytes)};
  }
  // A power of two, so that tags also repeat evenly where the payloads' numbers wrap at 2^32.
  if (!std::has_single_bit(config.payload_tags) || config.payload_tags > 8192) {
    return Status{Code::kInvalidArgument, "payload_tags must be a power of two up to 8192, not " +
                                              std::to_string(config.payload_tags)};
  }
  std::unique_ptr<MpiTransport> transport(new MpiTransport(mpi, config, receiver));
  int processes = 0;
  int error = mpi->CommSize(config.comm, &processes);
  if (error == 0) error = mpi->CommRank(config.comm, &transport->process_);
  if (error != 0) return transport->MpiError("MPI_Comm_rank", -1, error);

  if (transport->config_.credit_bytes < 0) {
    transport->config_.credit_bytes = CreditBytes(processes);
  }
  transport->peers_ = std::vector<Peer>(static_cast<size_t>(processes));
  Credit::Amount small = Credit::Share(config.small_credit, processes);
  small.bytes = std::min<int64_t>(small.bytes, 1 << 30);   // as a header can give back
  for (Peer& peer : transport->peers_) {
    peer.credit_bytes = transport->config_.credit_bytes;
    peer.small_credit.Grant(small);
  }
  transport->ring_.resize(kRingSize);
  for (RingSlot& slot : transport->ring_) {
    slot.buffer = transport->TakeBuffer();
    Status posted = transport->PostRingSlot(&slot);
    if (!posted.ok()) return posted;
  }
  return transport;
}

Status MpiTransport::MpiError(const char* call, int process, int error) const {
  std::string text = std::string(call) + " failed in process " + std::to_string(process_);
  if (process >= 0) text += ", peer process " + std::to_string(process);
  return {Code::kUnavailable, text + ": " + mpi_->ErrorText(error)};
}

MpiTransport::Buffer MpiTransport::TakeBuffer() {
  if (spare_buffers_.empty()) {
    return std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(kControlBytes));
  }
  Buffer buffer = std::move(spare_buffers_.back());
  spare_buffers_.pop_back();
  return buffer;
}

void MpiTransport::GiveBuffer(Buffer buffer) {
  if (spare_buffers_.size() < kMostSpare) spare_buffers_.push_back(std::move(buffer));
}

void MpiTransport::LosePeer(int process, const Status& why) {
  Peer& peer = peers_[static_cast<size_t>(process)];
  if (peer.lost) return;
  peer.lost = true;
  // It will not want them any more.
  for (auto& [number, outgoing] : std::exchange(peer.outgoing, {})) {
    --outgoing_count_;
    outgoing.transfer->done->Done(why);
  }
  EndSmall(&peer, why);
  receiver_->OnPeerLost(process, why);
}

// --- Sending ----------------------------------------------------------------------------------

void MpiTransport::Send(int process, const Header& header, std::span<const Piece> payload,
                        Completion* done) {
  if (closed_) {
    done->Done({Code::kUnavailable, "the MPI transport is closed"});
    return;
  }
  if (process < 0 || process >= process_count()) {
    done->Done({Code::kInternal, "no process " + std::to_string(process) + " among " +
                                     std::to_string(process_count())});
    return;
  }
  if (TotalBytes(payload) != header.payload_bytes) {
    done->Done({Code::kInternal, "the header says " + std::to_string(header.payload_bytes) +
                                     " payload bytes, the pieces hold " +
                                     std::to_string(TotalBytes(payload))});
    return;
  }
  if (header.payload_bytes <= kEagerBytes) {
    if (header.type == MessageType::kData) {
      Peer& peer = peers_[static_cast<size_t>(process)];
      if (!peer.small_waiting.empty() || !peer.small_credit.Covers(header.payload_bytes)) {
        return SendSmallLater(process, header, payload, done);
      }
      peer.small_credit.Spend(header.payload_bytes);
    }
    Status status = SendControl(process, header, payload);
    if (!status.ok()) LosePeer(process, status);
    done->Done(std::move(status));
    return;
  }

  auto transfer = std::make_shared<Transfer>();
  transfer->process = process;
  transfer->done = done;
  std::byte* data = static_cast<std::byte*>(payload[0].data);
  if (payload.size() > 1) {
    transfer->staging.reset(new (std::nothrow)
                                std::byte[static_cast<size_t>(header.payload_bytes)]);
    data = transfer->staging.get();
    if (data == nullptr) {
      done->Done({Code::kUnavailable, "no memory to gather a payload of " +
                                          std::to_string(header.payload_bytes) + " bytes"});
      return;
    }
    Gather(payload, data);
  }
  Peer& peer = peers_[static_cast<size_t>(process)];
  const bool remote = IsRemote(process);
  const bool on_request =
      remote && (!peer.waiting.empty() || header.payload_bytes > peer.credit_bytes);
  const uint32_t number = peer.next_payload[on_request]++;
  Header announcement = header;
  announcement.payload_tag = number;
  if (on_request) announcement.type = MessageType::kOnRequest;
  Status status = SendControl(process, announcement, {});
  if (!status.ok()) {
    LosePeer(process, status);
    done->Done(std::move(status));
    return;
  }
  if (on_request) {
    if (peer.lost) {
      done->Done({Code::kUnavailable, "process " + std::to_string(process) + " has been lost"});
      return;
    }
    peer.outgoing[number] = {
        .transfer = std::move(transfer), .data = data, .bytes = header.payload_bytes};
    ++outgoing_count_;
    if (header.payload_bytes <= config_.credit_bytes) peer.waiting.emplace(header.lane, number);
    return SendWaiting(process);
  }
  if (remote) peer.credit_bytes -= header.payload_bytes;
  StartUnits(std::move(transfer), on_request, number, data, header.payload_bytes);
}

Status MpiTransport::SendControl(int process, const Header& header,
                                 std::span<const Piece> payload) {
  ControlSend send{.request = 0, .buffer = TakeBuffer(), .process = process};
  Header* own = new (send.buffer.get()) Header(header);
  own->source_process = process_;
  const Credit::Amount returned = peers_[static_cast<size_t>(process)].small_credit.Settle();
  own->returned_bytes = static_cast<int32_t>(returned.bytes);
  own->returned_messages = static_cast<int32_t>(returned.messages);
  Gather(payload, send.buffer.get() + sizeof(Header));
  const int64_t bytes = static_cast<int64_t>(sizeof(Header)) + TotalBytes(payload);
  int error = mpi_->Isend(send.buffer.get(), static_cast<int>(bytes), config_.byte_type, process,
                          kControlTag, config_.comm, &send.request);
  if (error != 0) return MpiError("MPI_Isend", process, error);
  // Most control messages have left by now, and their buffer can serve the next one.
  int completed = 0;
  error = mpi_->Test(&send.request, &completed);
  if (error != 0) return MpiError("MPI_Test (send)", process, error);
  if (completed != 0) {
    GiveBuffer(std::move(send.buffer));
  } else {
    control_sends_.push_back(std::move(send));
  }
  return Status::Ok();
}

// --- Receiving and progress -------------------------------------------------------------------

Status MpiTransport::PostRingSlot(RingSlot* slot) {
  slot->request = 0;
  const int error = mpi_->Irecv(slot->buffer.get(), static_cast<int>(kControlBytes),
                                config_.byte_type, mpi_->any_source(), kControlTag, config_.comm,
                                &slot->request);
  if (error == 0) return Status::Ok();
  slot->request = 0;
  return MpiError("MPI_Irecv", -1, error);
}

bool MpiTransport::Poll() {
  if (closed_) return false;
  bool any = PollRing();
  any |= PollUnits();
  any |= PollControlSends();
  Settle();
  return any;
}

bool MpiTransport::PollRing() {
  bool any = false;
  // At most once around, so that a flood of messages does not keep the lock.
  for (int i = 0; i < kRingSize && !receive_failed_; ++i) {
    RingSlot& slot = ring_[ring_head_];
    int completed = 0;
    const int error = mpi_->Test(&slot.request, &completed);
    Status status;
    if (error != 0) {
      slot.request = 0;
      status = MpiError("MPI_Test (receive)", -1, error);
    } else if (completed == 0) {
      break;
    } else {
      any = true;
      // The ring is whole again before the message is looked at, which may take a while.
      Buffer message = std::exchange(slot.buffer, TakeBuffer());
      status = PostRingSlot(&slot);
      ring_head_ = (ring_head_ + 1) % ring_.size();
      Deliver(message.get());
      GiveBuffer(std::move(message));
    }
    if (!status.ok()) {
      // Without its ring a process hears from nobody.
      receive_failed_ = true;
      any = true;
      for (int p = 0; p < process_count(); ++p) LosePeer(p, status);
    }
  }
  return any;
}

void MpiTransport::Deliver(const std::byte* message) {
  Header header;
  std::memcpy(&header, message, sizeof(header));
  const bool known_source = header.magic == Header::kMagic && header.source_process >= 0 &&
                            header.source_process < process_count();
  std::span<const std::byte> payload;
  Announced announced;
  bool good = known_source && header.payload_bytes >= 0;
  if (good && header.returned_messages != 0) good = RegainSmall(header.source_process, header);
  if (good && header.type == MessageType::kWant) {
    good = header.total_bytes <= kEagerBytes
               ? SendSmallWanted(header.source_process, header.payload_tag)
               : StartWanted(header.source_process, header.payload_tag);
    if (good) return;
  } else if (good && header.type == MessageType::kLate) {
    good = header.payload_bytes <= kEagerBytes &&
           ReceiveLate(header,
                       {message + sizeof(header), static_cast<size_t>(header.payload_bytes)});
    if (good) return;
  } else if (good && header.type == MessageType::kCredit) {
    if (header.total_bytes == 0) return;   // that of small messages has been regained
    good = TakeCredit(header.source_process, header.total_bytes);
    if (good) return SendWaiting(header.source_process);
  } else if (good && header.type == MessageType::kComing) {
    good = ReceiveComing(header.source_process, header.payload_tag, header.total_bytes);
    if (good) return;
  } else if (good && header.payload_bytes <= kEagerBytes &&
             header.type == MessageType::kOnRequest) {
    header.type = MessageType::kData;
    announced = {.process = header.source_process, .id = kSmall << 32 | header.payload_tag};
    good = peers_[static_cast<size_t>(header.source_process)]
               .small_incoming
               .try_emplace(header.payload_tag, SmallIncoming{.bytes = header.payload_bytes})
               .second;
  } else if (good && header.payload_bytes <= kEagerBytes) {
    payload = {message + sizeof(header), static_cast<size_t>(header.payload_bytes)};
  } else if (good) {
    const bool on_request = header.type == MessageType::kOnRequest;
    if (on_request) header.type = MessageType::kData;
    announced = {.process = header.source_process,
                 .id = static_cast<uint64_t>(on_request) << 32 | header.payload_tag};
    Peer& peer = peers_[static_cast<size_t>(header.source_process)];
    good = (on_request || UseCredit(header.source_process, header.payload_bytes)) &&
           peer.incoming[on_request]
               .try_emplace(header.payload_tag, Incoming{.bytes = header.payload_bytes})
               .second;
  }
  if (good) {
    receiver_->OnMessage(header, payload, announced);
    if (announced.process < 0 && header.type == MessageType::kData) {
      TakeSmall(header.source_process, header.payload_bytes);
    }
    if (announced.process >= 0 && announced.id >> 32 == 0) ReceiveEarly(announced);
    return;
  }
  ++bad_header_count_;
  const Status status{Code::kDataLoss, "process " + std::to_string(process_) +
                                           " received a header that cannot be (magic " +
                                           std::to_string(header.magic) + ", source process " +
                                           std::to_string(header.source_process) + ", " +
                                           std::to_string(header.payload_bytes) +
                                           " payload bytes); such headers so far: " +
                                           std::to_string(bad_header_count_)};
  if (known_source) {
    LosePeer(header.source_process, status);
  } else {
    receiver_->OnPeerLost(-1, status);
  }
}

bool MpiTransport::PollUnits() {
  const bool any = PollUnits(/*receives=*/true);
  return PollUnits(/*receives=*/false) || any;
}

bool MpiTransport::PollUnits(bool receives) {
  bool any = false;
  std::vector<Unit>& units = units_[receives];
  size_t& next = next_unit_test_[receives];
  const size_t tests = std::min(units.size(), kTestsPerPoll);
  // Callbacks may start more units, and none are removed elsewhere.
  for (size_t i = 0; i < tests && !units.empty(); ++i) {
    if (next >= units.size()) next = 0;
    Unit& unit = units[next];
    int completed = 0;
    const int error = mpi_->Test(&unit.request, &completed);
    if (error == 0 && completed == 0) {
      ++next;
      continue;
    }
    any = true;
    const Unit finished = SwapOut(&units, next);
    Transfer* transfer = finished.transfer.get();
    FinishUnit(transfer, error == 0 ? Status::Ok()
                                    : MpiError(transfer->receives ? "MPI_Test (receive)"
                                                                  : "MPI_Test (send)",
                                               transfer->process, error));
  }
  return any;
}

bool MpiTransport::PollControlSends() {
  bool any = false;
  const size_t tests = std::min(control_sends_.size(), kTestsPerPoll);
  for (size_t i = 0; i < tests && !control_sends_.empty(); ++i) {
    if (next_control_test_ >= control_sends_.size()) next_control_test_ = 0;
    int completed = 0;
    const int error = mpi_->Test(&control_sends_[next_control_test_].request, &completed);
    if (error == 0 && completed == 0) {
      ++next_control_test_;
      continue;
    }
    any = true;
    ControlSend finished = SwapOut(&control_sends_, next_control_test_);
    GiveBuffer(std::move(finished.buffer));
    if (error != 0) {
      LosePeer(finished.process, MpiError("MPI_Test (send)", finished.process, error));
    }
  }
  return any;
}

// --- Closing ----------------------------------------------------------------------------------

void MpiTransport::ShutdownBarrier(std::chrono::milliseconds patience) {
  if (closed_ || mpi_->Finalized()) return;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  MpiHandle request = 0;
  if (mpi_->Ibarrier(config_.comm, &request) != 0) return;
  auto pause = std::chrono::microseconds(0);
  // Python cannot handle Ctrl-C meanwhile: it ends the wait.
  const uint64_t interrupts = InterruptCount();
  auto goes_on = [&] {
    return std::chrono::steady_clock::now() < deadline && InterruptCount() == interrupts;
  };
  for (int everyone = 0; everyone == 0 && goes_on();) {
    if (mpi_->Test(&request, &everyone) != 0) return;
    if (Poll()) pause = std::chrono::microseconds(0);
    if (everyone == 0) std::this_thread::sleep_for(pause);
    pause = std::min(pause + std::chrono::microseconds(5), std::chrono::microseconds(1000));
  }
}

void MpiTransport::Close(std::chrono::milliseconds patience) {
  if (closed_) return;
  const bool finalized = mpi_->Finalized();
  const auto deadline = std::chrono::steady_clock::now() + patience;
  auto in_time = [&] { return std::chrono::steady_clock::now() < deadline; };
  // Sends, and payloads that nobody wants here but whose senders wait for them to be taken.
  auto sends_open = [&] {
    return !control_sends_.empty() || !units_[0].empty() ||
           std::ranges::any_of(units_[1],
                               [](const Unit& u) { return u.transfer->done == nullptr; });
  };
  while (!finalized && sends_open() && in_time()) {
    const bool units = PollUnits();
    if (!PollControlSends() && !units) std::this_thread::yield();
  }
  closed_ = true;

  // True when MPI no longer touches the request's memory.
  auto withdraw = [&](MpiHandle* request) {
    if (finalized) return true;
    if (mpi_->Cancel(request) != 0) return false;
    int completed = 0;
    do {
      if (mpi_->Test(request, &completed) != 0) return false;
    } while (completed == 0 && in_time());
    return completed != 0;
  };
  auto leave = [](Buffer* buffer) { static_cast<void>(buffer->release()); };

  for (RingSlot& slot : ring_) {
    // MPI may still hold the buffer of a receive that failed.
    if (slot.request == 0 || !withdraw(&slot.request)) leave(&slot.buffer);
  }
  for (ControlSend& send : control_sends_) {
    if (finalized) continue;
    static_cast<void>(mpi_->RequestFree(&send.request));
    leave(&send.buffer);
  }
  const Status status{Code::kUnavailable, "the MPI transport was closed"};
  std::vector<Unit> units = std::exchange(units_[0], {});
  for (Unit& unit : std::exchange(units_[1], {})) units.push_back(std::move(unit));
  for (Unit& unit : units) {
    Transfer* transfer = unit.transfer.get();
    const bool free = transfer->receives ? withdraw(&unit.request) : finalized;
    if (!transfer->receives && !finalized) static_cast<void>(mpi_->RequestFree(&unit.request));
    if (!free) leave(&transfer->staging);
    if (transfer->status.ok()) transfer->status = status;
    FinishUnit(transfer, Status::Ok());
  }
  for (Peer& peer : peers_) {
    for (auto& kind : peer.incoming) {
      for (auto& [number, incoming] : kind) {
        if (incoming.done != nullptr) incoming.done->Done(status);
      }
      kind.clear();
    }
    for (auto& [number, outgoing] : std::exchange(peer.outgoing, {})) {
      if (outgoing.transfer->done != nullptr) outgoing.transfer->done->Done(status);
    }
    EndSmall(&peer, status);
  }
  ring_.clear();
  control_sends_.clear();
}

}  // namespace jaxccomp
