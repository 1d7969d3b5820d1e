// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

import java.util.concurrent.{CompletableFuture, ScheduledThreadPoolExecutor, TimeUnit}

/** Time source and timer. Tests pass one that stands still until they move it. */
private[comm] trait Clock {

  /** Nanoseconds, as System.nanoTime. Python's time.perf_counter agrees with it. */
  def nanoTime: Long

  /**
   * Wait until `done` is complete.
   *
   * @throws TimeoutException if it is not complete at `deadline` of [[nanoTime]]
   * @throws ExecutionException if it completed with a failure
   */
  def await(done: CompletableFuture[_], deadline: Long): Unit

  /** Run `task` once, `nanos` from now, on the clock's own thread. */
  def after(nanos: Long)(task: => Unit): Unit
}

private[comm] object SystemClock extends Clock {
  private val timer = {
    val pool = new ScheduledThreadPoolExecutor(
      1,
      task => {
        val thread = new Thread(task, "sparkdl-timer")
        thread.setDaemon(true)
        thread
      }
    )
    pool.setKeepAliveTime(10, TimeUnit.SECONDS)
    pool.allowCoreThreadTimeOut(true) // most applications rarely need it
    pool
  }

  override def nanoTime: Long = System.nanoTime

  override def await(done: CompletableFuture[_], deadline: Long): Unit =
    done.get(deadline - nanoTime, TimeUnit.NANOSECONDS)

  override def after(nanos: Long)(task: => Unit): Unit =
    timer.schedule((() => task): Runnable, nanos, TimeUnit.NANOSECONDS)
}
