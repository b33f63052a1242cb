// Checks and measures the stage (csrc/cuda/stage) on GPU 0, where two ranks of one process share it.
#pragma once

namespace jaxccomp {

// Whether codes in pinned memory are the CPU's, and operations of two ranks give what they should. Prints a line
// for each codec, and for each operation.
bool CompareStage();

// Prints a line for each size: the rates of copies and codes between the GPU and pinned memory, and of a
// broadcast, in bytes of values a second.
void MeasureStage();

}  // namespace jaxccomp
