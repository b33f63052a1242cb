#include "engine/state.h"

#include <memory>

#include "transport/local/local_transport.h"

namespace jaxccomp {
namespace {

// A continuation of an XLA program may block until all devices of the process have come as far
// (in-process collectives of XLA do), so there must be a thread for each; they start on demand.
constexpr size_t kMostWorkers = 256;

}  // namespace

EngineState::EngineState(int process, int process_count, Receiver* receiver,
                         Executor::Listener* listener)
    : processes(process_count),
      registry(process, process_count),
      wire(process, std::make_unique<LocalTransport>(process, receiver)),
      executor(&wire, listener, &stats),
      library(&executor),
      messages(&wire),
      workers(kMostWorkers) {}

}  // namespace jaxccomp
