# Finds StarPU 1.4 and gives the target StarPU::starpu.
#
# Looked for in this order, so that what the user names wins and what set-up built comes next:
#   1. SLIDEDP_STARPU, a prefix given as a CMake variable or in the environment; nothing else
#      is tried then
#   2. .deps/starpu-cpu (unless SDP_HAVE_CUDA) and .deps/starpu of the source tree, made by
#      cmake/build_starpu.sh; with StarPU_SIMGRID set only .deps/starpu-simgrid
#   3. pkg-config starpu-1.4
# A StarPU without CUDA does not serve a build with SDP_HAVE_CUDA and is passed over.
#
# Sets StarPU_FOUND, StarPU_VERSION, StarPU_PREFIX, StarPU_CUDA (built with CUDA), StarPU_FXT
# (can write traces) and StarPU_TOOLS (the folder of starpu_fxt_tool and its like).
#
# Nothing is kept in the cache: a changed prefix counts at the next configure.

include(FindPackageHandleStandardArgs)

# starpu_take(prefix include-folder library): takes this StarPU if it fits, else says why not.
function(starpu_take prefix include library)
    set(config "${include}/starpu_config.h")
    if(NOT EXISTS "${config}" OR NOT EXISTS "${library}")
        set(StarPU_REASON "${prefix} holds no StarPU 1.4" PARENT_SCOPE)
        return()
    endif()
    file(STRINGS "${config}" lines REGEX "^#define STARPU_")
    set(version "")
    foreach(part MAJOR MINOR RELEASE)
        string(REGEX MATCH "STARPU_${part}_VERSION ([0-9]+)" unused "${lines}")
        list(APPEND version "${CMAKE_MATCH_1}")
    endforeach()
    list(JOIN version "." version)
    set(cuda OFF)
    if(lines MATCHES "STARPU_USE_CUDA 1")
        set(cuda ON)
    endif()
    set(fxt OFF)
    if(lines MATCHES "STARPU_USE_FXT 1")
        set(fxt ON)
    endif()
    if(StarPU_FIND_VERSION AND version VERSION_LESS StarPU_FIND_VERSION)
        set(StarPU_REASON "${prefix} holds StarPU ${version}, but ${StarPU_FIND_VERSION} or later is needed"
            PARENT_SCOPE)
        return()
    endif()
    if(SDP_HAVE_CUDA AND NOT cuda AND NOT StarPU_SIMGRID)
        string(CONCAT reason "the StarPU in ${prefix} was built without CUDA: configure with "
            "-DSDP_CUDA=OFF or run cmake/setup.sh --cuda on")
        set(StarPU_REASON "${reason}" PARENT_SCOPE)
        return()
    endif()
    set(StarPU_PREFIX "${prefix}" PARENT_SCOPE)
    set(StarPU_INCLUDE_DIR "${include}" PARENT_SCOPE)
    set(StarPU_LIBRARY "${library}" PARENT_SCOPE)
    set(StarPU_VERSION "${version}" PARENT_SCOPE)
    set(StarPU_CUDA ${cuda} PARENT_SCOPE)
    set(StarPU_FXT ${fxt} PARENT_SCOPE)
endfunction()

set(StarPU_REASON "there is none: run cmake/setup.sh, or give a prefix with -DSLIDEDP_STARPU=DIR")
set(StarPU_LIBRARY "")
set(StarPU_INCLUDE_DIR "")

get_filename_component(starpu_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(StarPU_SIMGRID)
    set(starpu_prefixes "${starpu_root}/.deps/starpu-simgrid")
elseif(SLIDEDP_STARPU)
    set(starpu_prefixes "${SLIDEDP_STARPU}")
elseif(NOT "$ENV{SLIDEDP_STARPU}" STREQUAL "")
    set(starpu_prefixes "$ENV{SLIDEDP_STARPU}")
else()
    set(starpu_prefixes "${starpu_root}/.deps/starpu")
    if(NOT SDP_HAVE_CUDA)
        list(PREPEND starpu_prefixes "${starpu_root}/.deps/starpu-cpu")
    endif()
    set(starpu_try_pkgconfig ON)
endif()
foreach(starpu_prefix IN LISTS starpu_prefixes)
    get_filename_component(starpu_prefix "${starpu_prefix}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
    find_library(starpu_library starpu-1.4 PATHS "${starpu_prefix}" NO_DEFAULT_PATH NO_CACHE
        PATH_SUFFIXES lib lib64 "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
    if(NOT StarPU_LIBRARY AND (starpu_library OR NOT starpu_try_pkgconfig))
        starpu_take("${starpu_prefix}" "${starpu_prefix}/include/starpu/1.4" "${starpu_library}")
    endif()
    unset(starpu_library)
endforeach()
if(NOT StarPU_LIBRARY AND starpu_try_pkgconfig)
    find_package(PkgConfig QUIET)
    if(PkgConfig_FOUND)
        pkg_check_modules(PC_StarPU QUIET starpu-1.4)
        if(PC_StarPU_FOUND)
            find_library(starpu_library starpu-1.4 HINTS ${PC_StarPU_LIBRARY_DIRS} NO_CACHE)
            pkg_get_variable(starpu_include starpu-1.4 starpu_includedir)
            starpu_take("${PC_StarPU_PREFIX}" "${starpu_include}" "${starpu_library}")
            unset(starpu_library)
        endif()
    endif()
endif()
unset(starpu_try_pkgconfig)

find_package_handle_standard_args(StarPU
    REQUIRED_VARS StarPU_LIBRARY StarPU_INCLUDE_DIR
    VERSION_VAR StarPU_VERSION
    REASON_FAILURE_MESSAGE "${StarPU_REASON}")

if(StarPU_FOUND)
    set(StarPU_TOOLS "${StarPU_PREFIX}/bin")
    if(NOT TARGET StarPU::starpu)
        set(starpu_includes "${StarPU_INCLUDE_DIR}")
        if(StarPU_CUDA)
            # starpu.h includes CUDA's headers then.
            find_package(CUDAToolkit QUIET)
            list(APPEND starpu_includes ${CUDAToolkit_INCLUDE_DIRS})
        endif()
        # An imported target's include folders are system ones: StarPU's headers give warnings.
        add_library(StarPU::starpu UNKNOWN IMPORTED)
        set_target_properties(StarPU::starpu PROPERTIES
            IMPORTED_LOCATION "${StarPU_LIBRARY}"
            INTERFACE_INCLUDE_DIRECTORIES "${starpu_includes}")
    endif()
endif()
