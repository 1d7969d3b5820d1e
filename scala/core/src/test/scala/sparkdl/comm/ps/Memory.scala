// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

/** Memory files of processes that stand in for Python workers. */
object Memory {

  /**
   * Start a process that creates a memory file, as a Python worker does. Run `body` with the path
   * of the file. Then end the process.
   *
   * @param bytes size of the file
   * @param seals names of the file's seals, separated by spaces
   */
  def withPath[T](
      bytes: Long,
      seals: String = "F_SEAL_SHRINK F_SEAL_GROW F_SEAL_SEAL"
  )(body: String => T): T = {
    val worker = new ProcessBuilder("python3", "-c", Worker, bytes.toString, seals)
      .redirectError(ProcessBuilder.Redirect.INHERIT)
      .start()
    try body(worker.inputReader.readLine())
    finally {
      worker.getOutputStream.close() // the worker ends
      worker.waitFor()
    }
  }

  /** Program of the worker: Java cannot make a memory file. */
  private val Worker =
    """import fcntl, os, sys
      |fd = os.memfd_create("sparkdl", os.MFD_ALLOW_SEALING)
      |os.ftruncate(fd, int(sys.argv[1]))
      |fcntl.fcntl(fd, fcntl.F_ADD_SEALS, sum(getattr(fcntl, seal) for seal in sys.argv[2].split()))
      |print(f"/proc/{os.getpid()}/fd/{fd}", flush=True)
      |sys.stdin.read()""".stripMargin
}
