// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

import org.scalatest.funsuite.AnyFunSuite

class PhaseNumbersSpec extends AnyFunSuite {
  private var last = 0L
  private def fit(): PhaseNumbers = new PhaseNumbers(() => {
    last += 1
    last
  })

  test("a phase keeps its number, and comes after earlier phases in any order of requests") {
    val numbers = fit()
    val third = numbers(2)
    assert(numbers(1) < third && numbers(0) < numbers(1))
    assert(numbers(3) > third && numbers(2) === third)
  }

  test("fits with many and with few steps take turns") {
    val (old, young) = (fit(), fit())
    (0L to 100000L).foreach(old(_))
    assert(old(100000) < young(0))
    assert(young(0) < old(100001) && old(100001) < young(1))
  }

  test("a long past phase has the number of the oldest known phase") {
    val numbers = fit()
    (0L to 9L).foreach(numbers(_))
    assert(numbers(0) === numbers(6) && numbers(6) < numbers(7))
    assert(numbers(1L << 40) > numbers(9))
  }
}
