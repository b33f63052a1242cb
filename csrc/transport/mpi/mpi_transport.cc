#include "transport/mpi/mpi_transport.h"

#include <bit>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "common/interrupts.h"
#include "transport/pieces.h"

namespace jaxccomp {
namespace {

const Status& ClosedError() {
  static const Status error(Code::kUnavailable, "the MPI transport is closed");
  return error;
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
  // A power of two, so that number % payload_tags has no jump where numbers wrap at 2^32.
  if (!std::has_single_bit(config.payload_tags) || config.payload_tags > 8192) {
    return Status{Code::kInvalidArgument, "payload_tags must be a power of two up to 8192, not " +
                                              std::to_string(config.payload_tags)};
  }
  MpiWorld world{.mpi = mpi, .config = config};
  int error = mpi->CommSize(config.comm, &world.processes);
  if (error == 0) error = mpi->CommRank(config.comm, &world.process);
  if (error != 0) return world.Error("MPI_Comm_rank", -1, error);
  world.failed.resize(static_cast<size_t>(world.processes));
  world.dead.resize(static_cast<size_t>(world.processes));

  Credit::Amount small = Credit::Share(config.small_credit, world.processes);
  small.bytes = std::min<int64_t>(small.bytes, 1 << 30);   // fits Header::returned_bytes
  std::unique_ptr<MpiTransport> transport(new MpiTransport(std::move(world), receiver));
  transport->control_.GrantSmall(small);
  if (Status opened = transport->control_.Open(); !opened.ok()) return opened;
  return transport;
}

MpiTransport::MpiTransport(MpiWorld world, Receiver* receiver)
    : world_(std::move(world)),
      receiver_(receiver),
      control_(&world_, this),
      payloads_(&world_, &control_),
      small_(&control_) {
  world_.on_lost = [this](int process, const Status& why) { OnLost(process, why); };
}

void MpiTransport::OnLost(int process, const Status& why) {
  payloads_.MarkFailed(process, why);
  small_.MarkFailed(process, why);
  receiver_->OnPeerFailed(process, why);
}

// --- Sending and pulling -----------------------------------------------------------------------

void MpiTransport::Send(int process, const Header& header, std::span<const Piece> payload,
                        Completion* done) {
  if (world_.closed) return done->Done(ClosedError());
  SendBySize(process, header, payload, done, kEagerBytes, &control_, &small_, &payloads_);
}

void MpiTransport::Pull(Announced announced, std::span<const Piece> into, Completion* done) {
  if (world_.closed) {
    if (done != nullptr) done->Done(ClosedError());
  } else if (IsSmall(announced)) {
    small_.Pull(announced, into, done);
  } else {
    payloads_.Pull(announced, into, done);
  }
}

// --- Receiving and progress -------------------------------------------------------------------

bool MpiTransport::Poll() {
  if (world_.closed) return false;
  // Messages first: they may cancel transfers, which is only possible while MPI has not completed them.
  bool any = control_.PollReceives();
  any |= PollRequests();
  ReturnCredit();
  return any;
}

bool MpiTransport::PollRequests() {
  MpiBatch batch;
  payloads_.Add(&batch);
  control_.AddSends(&batch);
  if (!batch.Test(*world_.mpi)) return false;
  payloads_.TakeCompleted();
  control_.TakeSent();
  return true;
}

void MpiTransport::OnControlMessage(const std::byte* message) {
  Header header;
  std::memcpy(&header, message, sizeof(header));
  const bool known_source = header.magic == Header::kMagic && header.source_process >= 0 &&
                            header.source_process < process_count();
  bool good = known_source && header.payload_bytes >= 0;
  if (good && header.returned_messages != 0) good = small_.Replenish(header);
  if (good) {
    std::span<const std::byte> payload;
    if (header.payload_bytes <= kEagerBytes) {
      payload = {message + sizeof(header), static_cast<size_t>(header.payload_bytes)};
    }
    switch (header.type) {
      case MessageType::kClearToSend:
      case MessageType::kDeferredEager:
      case MessageType::kCredit:
      case MessageType::kEagerUpgrade:
      case MessageType::kCancelled:
      case MessageType::kFin:
        good = OnOwnMessage(header, payload);
        break;
      default:
        good = Deliver(header, payload);
    }
  }
  if (good) return;
  ++bad_header_count_;
  const Status status{Code::kDataLoss, "process " + std::to_string(world_.process) +
                                           " received an invalid header (magic " +
                                           std::to_string(header.magic) + ", source process " +
                                           std::to_string(header.source_process) + ", " +
                                           std::to_string(header.payload_bytes) +
                                           " payload bytes); number of invalid headers: " +
                                           std::to_string(bad_header_count_)};
  if (known_source) {
    world_.MarkFailed(header.source_process, status);
  } else {
    receiver_->OnPeerFailed(-1, status);
  }
}

bool MpiTransport::OnOwnMessage(const Header& header, std::span<const std::byte> payload) {
  const int process = header.source_process;
  switch (header.type) {
    case MessageType::kClearToSend:
      return header.total_bytes <= kEagerBytes ? small_.OnClearToSend(process, header.payload_tag)
                                               : payloads_.OnClearToSend(process, header.payload_tag);
    case MessageType::kDeferredEager:
      return header.payload_bytes <= kEagerBytes && small_.OnDeferredEager(header, payload);
    case MessageType::kCredit:
      // OnControlMessage has already regained the credit of small messages.
      return header.total_bytes == 0 || payloads_.OnCredit(process, header.total_bytes);
    case MessageType::kEagerUpgrade:
      return payloads_.OnEagerUpgrade(process, header.payload_tag, header.total_bytes);
    case MessageType::kCancelled:
      return payloads_.OnCancelled(process, header.payload_tag);
    default:
      return payloads_.OnFin(process, header.payload_tag);
  }
}

bool MpiTransport::Deliver(Header header, std::span<const std::byte> payload) {
  const bool small = header.payload_bytes <= kEagerBytes;
  const bool on_request = header.type == MessageType::kReadyToSend;
  Announced announced;
  if (on_request || !small) {
    announced = AnnouncedAs(
        small ? Kind::kSmall : on_request ? Kind::kReadyToSend : Kind::kAtOnce, header);
    if (small ? !small_.OnAnnounced(header) : !payloads_.OnAnnounced(header, announced)) return false;
    if (on_request) header.type = MessageType::kData;
    payload = {};
  }
  receiver_->OnMessage(header, payload, announced);
  if (announced.process < 0) {
    if (header.type == MessageType::kData) small_.Take(header.source_process, header.payload_bytes);
  } else if (KindOf(announced) == Kind::kAtOnce) {
    payloads_.ReceiveEarly(announced);
  }
  return true;
}

// --- The end ------------------------------------------------------------------------------------

CancelResult MpiTransport::Cancel(int process, Completion* done, const Status& why, bool force) {
  if (world_.closed || small_.Cancel(process, done, why)) return CancelResult::kDone;
  return payloads_.Cancel(process, done, why, force);
}

void MpiTransport::Quiesce(const Status& why) {
  if (world_.closed) return;
  world_.closed = true;
  control_.Abandon();
  payloads_.Abandon(why);
  small_.Close(why);
  for (int process = 0; process < process_count(); ++process) {
    if (process != world_.process) world_.MarkFailed(process, why);
  }
}

void MpiTransport::ShutdownBarrier(std::chrono::milliseconds patience) {
  if (world_.closed || world_.mpi->Finalized()) return;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  MpiHandle request = 0;
  if (world_.mpi->Ibarrier(world_.config.comm, &request) != 0) return;
  auto pause = std::chrono::microseconds(0);
  // Python cannot handle Ctrl-C during the wait, so an interrupt ends it.
  const uint64_t interrupts = InterruptCount();
  auto goes_on = [&] {
    return std::chrono::steady_clock::now() < deadline && InterruptCount() == interrupts;
  };
  for (int everyone = 0; everyone == 0 && goes_on();) {
    if (world_.mpi->Test(&request, &everyone) != 0) return;
    if (Poll()) pause = std::chrono::microseconds(0);
    if (everyone == 0) std::this_thread::sleep_for(pause);
    pause = std::min(pause + std::chrono::microseconds(5), std::chrono::microseconds(1000));
  }
}

void MpiTransport::Close(std::chrono::milliseconds patience) {
  if (world_.closed) return;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  // Wait for sends, and for receives of dropped payloads, because their senders wait.
  auto goes_on = [&] {
    return (control_.HasSends() || payloads_.OthersWait()) &&
           std::chrono::steady_clock::now() < deadline;
  };
  while (!world_.mpi->Finalized() && goes_on()) {
    if (!PollRequests()) std::this_thread::yield();
  }
  world_.closed = true;
  const Status why{Code::kUnavailable, "the MPI transport was closed"};
  control_.Close(deadline);
  payloads_.Close(why, deadline);
  small_.Close(why);
}

}  // namespace jaxccomp
