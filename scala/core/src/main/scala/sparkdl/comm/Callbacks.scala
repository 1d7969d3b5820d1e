// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

/** Calls of independent callbacks. */
private[comm] object Callbacks {

  /**
   * Call `call` with each of `all`, also after one that throws. Then throw what the first one
   * threw.
   */
  def callAll[T](all: Iterable[T])(call: T => Unit): Unit = {
    var first = Option.empty[Throwable]
    all.foreach { each =>
      try call(each)
      catch { case e: Throwable => if (first.isEmpty) first = Some(e) }
    }
    first.foreach(throw _)
  }
}
