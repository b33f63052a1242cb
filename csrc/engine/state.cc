#include "engine/state.h"

#include <memory>
#include <utility>

#include "transport/local/local_transport.h"

namespace jaxccomp {
namespace {

// A continuation of an XLA program may block until all devices of the process have come as far
// (in-process collectives of XLA do), so there must be a thread for each; they start on demand.
constexpr size_t kMostWorkers = 256;

// A message that nobody waits for: lives until it is sent.
struct Notice final : Completion {
  std::string text;
  void Done(Status) override { delete this; }
};

}  // namespace

EngineState::EngineState(int process, int process_count, Receiver* receiver,
                         Executor::Listener* listener, DeviceExecution::Listener* device_listener)
    : processes(process_count),
      registry(process, process_count),
      wire(process, std::make_unique<LocalTransport>(process, receiver)),
      executor(&wire, listener, &stats),
      devices(&executor, &wire, device_listener),
      messages(&wire),
      workers(kMostWorkers) {}

bool EngineState::Notify(int process, const Header& header, std::string payload) {
  Transport* const transport = wire.To(process);
  if (transport == nullptr) return false;
  auto* notice = new Notice;
  notice->text = std::move(payload);
  Header h = header;
  h.payload_bytes = static_cast<int64_t>(notice->text.size());
  const Piece piece{notice->text.data(), h.payload_bytes};
  transport->Send(process, h, {&piece, h.payload_bytes > 0 ? size_t{1} : size_t{0}}, notice);
  return true;
}

}  // namespace jaxccomp
