package sparkdl.comm.flow

import java.util.ArrayDeque

import scala.collection.mutable

import sparkdl.comm.Clock

/**
 * Driver of a [[TransferScheduler]]: carries out the scheduler's decisions and reports their outcome. Thread-safe and
 * non-blocking.
 *
 * @tparam T data kept for each block until it is sent or cancelled
 * @param carryOut starts a request. Called by one thread at a time, in the order of the decisions
 * @param failed called with what `carryOut` threw, on the thread that ran it. The other requests are still carried out
 */
private[flow] final class Transfers[T](clock: Clock, scheduler: TransferScheduler)(carryOut: (Request, T) => Unit)(
    failed: (T, Throwable) => Unit
) {
  private val wanted = mutable.Map.empty[Wanted, T]

  // Carried out without this object's lock.
  private val toCarryOut = new ArrayDeque[Request]
  private var carryingOut = false
  private var wakesAt = Long.MaxValue

  /** Blocks that are not fully sent. */
  def pending: Int = synchronized(wanted.size)

  def isWanted(block: Wanted): Boolean = synchronized(wanted.contains(block))

  def want(block: Wanted, about: T): Unit = happened { _ =>
    wanted(block) = about
    scheduler.want(block)
  }

  /**
   * Report that a request is done. Return the data of its block if that was the block's last request.
   *
   * @param said as in [[TransferScheduler.arrived]]
   */
  def done(request: Request, said: Option[Long] = None): Option[T] =
    happened(now => if (scheduler.arrived(request, now, said)) wanted.remove(request.block) else None)

  /** Cancel a block. Return its data if it was pending. */
  def cancel(block: Wanted): Option[T] = happened { _ =>
    val about = wanted.remove(block)
    if (about.isDefined) scheduler.cancel(block)
    about
  }

  /** Cancel all pending blocks whose data satisfies `isMeant`. */
  def cancelAll(isMeant: T => Boolean): Unit = happened { _ =>
    val cancelled = wanted.collect { case (block, about) if isMeant(about) => block }.toList
    wanted --= cancelled
    cancelled.foreach(scheduler.cancel)
  }

  /** Report `event` to the scheduler, then carry out the requests that follow from it. */
  private def happened[R](event: Long => R): R = {
    val result = synchronized {
      val now = clock.nanoTime
      val result = event(now)
      scheduler.next(now).foreach(toCarryOut.add)
      scheduler.wakeAt(now).filter(_ < wakesAt).foreach { time =>
        // A wake-up that an earlier one replaced does not reset `wakesAt`, so it has no successor.
        clock.after(time - now)(happened(_ => if (wakesAt == time) wakesAt = Long.MaxValue))
        wakesAt = time
      }
      result
    }
    carryOutAll()
    result
  }

  private def carryOutAll(): Unit = {
    val mine = synchronized {
      val free = !carryingOut && !toCarryOut.isEmpty
      carryingOut |= free
      free
    }
    if (mine) {
      var finished = false
      try {
        Iterator.continually(nextToCarryOut()).takeWhile(_.isDefined).flatten.foreach { case (request, about) =>
          try carryOut(request, about)
          catch { case e: Throwable => failed(about, e) }
        }
        finished = true
      } finally if (!finished) synchronized { carryingOut = false }
    }
  }

  /** Return the next request whose block is not cancelled. */
  private def nextToCarryOut(): Option[(Request, T)] = synchronized {
    var found = Option.empty[(Request, T)]
    while (found.isEmpty && !toCarryOut.isEmpty) {
      val request = toCarryOut.poll()
      found = wanted.get(request.block).map(request -> _)
    }
    if (found.isEmpty) carryingOut = false
    found
  }
}
