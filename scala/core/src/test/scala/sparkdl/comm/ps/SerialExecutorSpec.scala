// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import org.scalatest.funsuite.AnyFunSuite

class SerialExecutorSpec extends AnyFunSuite {
  test("tasks run in order, one at a time, and occupy one thread of the pool while there are any") {
    var pool = Vector.empty[Runnable]
    var ran = Vector.empty[Int]
    val queue = new SerialExecutor(task => pool :+= task)
    (1 to 3).foreach { number =>
      queue.execute { () =>
        ran :+= number
        if (number == 3) queue.execute(() => ran :+= 4) // added by a task, runs after it
      }
    }
    assert(pool.size === 1 && ran.isEmpty)
    pool.head.run()
    assert(ran === Seq(1, 2, 3, 4))
    queue.execute(() => ran :+= 5)
    assert(pool.size === 2)
    pool(1).run()
    assert(ran.last === 5)
  }
}
