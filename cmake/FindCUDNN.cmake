# Finds cuDNN 9 and gives the target CUDNN::cudnn. CUDNN_ROOT names a prefix. Call
# find_package(CUDAToolkit) first: its folders are searched too.
#
# Sets CUDNN_FOUND, CUDNN_VERSION and, where the header-only C++ front end is at hand (set-up
# puts it in .deps/cudnn-frontend), CUDNN_FRONTEND_INCLUDE_DIR; without it a message says that
# attention uses slidedp's own kernel. The target holds libcudnn alone: give the front end's
# folder as a system one to the file that uses it, which needs C++17.

include(FindPackageHandleStandardArgs)
find_path(CUDNN_INCLUDE_DIR cudnn.h
    HINTS ${CUDNN_ROOT} $ENV{CUDNN_ROOT} ${CUDAToolkit_INCLUDE_DIRS}
    PATH_SUFFIXES include)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9
    HINTS ${CUDNN_ROOT} $ENV{CUDNN_ROOT} ${CUDAToolkit_LIBRARY_DIR}
    PATH_SUFFIXES lib lib64)
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
    HINTS "${CMAKE_CURRENT_LIST_DIR}/../.deps/cudnn-frontend/include" ${CUDNN_INCLUDE_DIR})
mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_LIBRARY CUDNN_FRONTEND_INCLUDE_DIR)
set(CUDNN_VERSION "")
if(CUDNN_INCLUDE_DIR AND EXISTS "${CUDNN_INCLUDE_DIR}/cudnn_version.h")
    file(STRINGS "${CUDNN_INCLUDE_DIR}/cudnn_version.h" cudnn_lines
        REGEX "#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) ")
    string(REGEX REPLACE "[^0-9;]" "" CUDNN_VERSION "${cudnn_lines}")
    list(JOIN CUDNN_VERSION "." CUDNN_VERSION)
endif()

find_package_handle_standard_args(CUDNN
    REQUIRED_VARS CUDNN_LIBRARY CUDNN_INCLUDE_DIR VERSION_VAR CUDNN_VERSION
    REASON_FAILURE_MESSAGE "give its prefix with -DCUDNN_ROOT=DIR, without it attention uses slidedp's own kernel")

if(CUDNN_FOUND)
    if(NOT CUDNN_FRONTEND_INCLUDE_DIR)
        set(CUDNN_FRONTEND_INCLUDE_DIR "")
        if(NOT CUDNN_FIND_QUIETLY)
            message(STATUS "cuDNN's front end is not here (cmake/setup.sh gets it): attention uses slidedp's own kernel")
        endif()
    endif()
    if(NOT TARGET CUDNN::cudnn)
        add_library(CUDNN::cudnn UNKNOWN IMPORTED)
        set_target_properties(CUDNN::cudnn PROPERTIES
            IMPORTED_LOCATION "${CUDNN_LIBRARY}"
            INTERFACE_INCLUDE_DIRECTORIES "${CUDNN_INCLUDE_DIR}")
    endif()
endif()
