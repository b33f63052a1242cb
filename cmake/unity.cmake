# Compiles small files of a folder together, a few at a time: most of the time of a small file goes into instantiating
# the standard library. Files of such a folder must not use the same name for different things. `make sanitize` and
# `make fuzz` switch it off and compile each file alone, so that each must include the headers that it uses.
option(JAXCCOMP_UNITY_BUILD "Compile small files of a folder together" ON)
set(UNITY_FOLDERS csrc/codec csrc/codec/delta csrc/codec/lossless csrc/collective csrc/common csrc/cuda/stage csrc/engine
    csrc/execution csrc/matching csrc/planner csrc/transport/mpi xla_ffi/handlers xla_ffi/python)

function(compile_together target files_together)
  if(NOT JAXCCOMP_UNITY_BUILD)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(folder IN LISTS UNITY_FOLDERS)
    set(files ${ARGN})
    list(FILTER files INCLUDE REGEX "^${folder}/[^/]*$")
    # Kernels have their own compiler flags.
    list(FILTER files EXCLUDE REGEX "/kernels_[^/]*$")
    set(count 0)
    foreach(file IN LISTS files)
      math(EXPR group "${count} / ${files_together}")
      math(EXPR count "${count} + 1")
      set_source_files_properties(${file} PROPERTIES UNITY_GROUP "${folder}/${group}")
    endforeach()
  endforeach()
endfunction()
