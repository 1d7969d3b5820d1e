// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

import java.nio.file.Files

import org.scalatest.funsuite.AnyFunSuite

class BuildSpec extends AnyFunSuite {
  test("different jars of one version have different builds") {
    def build(contents: String): String =
      Build.describe(
        Files.writeString(Files.createTempFile("sparkdl-comm", ".jar"), contents).toUri.toURL
      )
    assert(build("one") === build("one"))
    assert(build("one") !== build("other"))
    assert(build("one").startsWith("0.1.0 (jar "))
    assert(Build.id === "0.1.0 (classes)")
  }
}
