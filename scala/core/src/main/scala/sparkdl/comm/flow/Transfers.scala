package sparkdl.comm.flow

import java.util.ArrayDeque

import scala.collection.mutable

import sparkdl.comm.Clock

/**
 * Has carried out what a [[TransferScheduler]] decides, and tells it what comes of it. Any thread may call it; it never waits.
 *
 * @tparam T what is known of a wanted block until all of it is transferred, or it is cancelled
 * @param carryOut begins with a request. Called by one thread at a time, in the order of the decisions
 * @param failed told what `carryOut` threw, whichever thread it was that called; the other requests are carried out
 */
private[flow] final class Transfers[T](clock: Clock, scheduler: TransferScheduler)(carryOut: (Request, T) => Unit)(
    failed: (T, Throwable) => Unit
) {
  private val wanted = mutable.Map.empty[Wanted, T]

  // Outside of this object's lock.
  private val toCarryOut = new ArrayDeque[Request]
  private var carryingOut = false
  private var wakesAt = Long.MaxValue

  /** Blocks that are wanted. */
  def pending: Int = synchronized(wanted.size)

  def isWanted(block: Wanted): Boolean = synchronized(wanted.contains(block))

  def want(block: Wanted, about: T): Unit = happened { _ =>
    wanted(block) = about
    scheduler.want(block)
  }

  /**
   * The request is done. Returns what is known of its block if that was the last one of it.
   *
   * @param said as [[TransferScheduler.arrived]] has it
   */
  def done(request: Request, said: Option[Long] = None): Option[T] =
    happened(now => if (scheduler.arrived(request, now, said)) wanted.remove(request.block) else None)

  /** Returns what was known of the block if it was still wanted. */
  def cancel(block: Wanted): Option[T] = happened { _ =>
    val about = wanted.remove(block)
    if (about.isDefined) scheduler.cancel(block)
    about
  }

  /** Cancel all that is wanted and for which `isMeant` holds. */
  def cancelAll(isMeant: T => Boolean): Unit = happened { _ =>
    val cancelled = wanted.collect { case (block, about) if isMeant(about) => block }.toList
    wanted --= cancelled
    cancelled.foreach(scheduler.cancel)
  }

  /** `event` is what happened, for the scheduler. */
  private def happened[R](event: Long => R): R = {
    val result = synchronized {
      val now = clock.nanoTime
      val result = event(now)
      scheduler.next(now).foreach(toCarryOut.add)
      scheduler.wakeAt(now).filter(_ < wakesAt).foreach { time =>
        // One that an earlier one took the place of has no successor: there is one chain of them.
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

  /** Without those that are cancelled. */
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
