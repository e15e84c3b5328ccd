"""The page in a browser without a screen, in front of fixed answers."""

import os
import shutil

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait


@pytest.fixture
def page(scripted):
    driver_path = shutil.which("chromedriver")
    if not driver_path:
        pytest.skip("there is no chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    for flag in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,800"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver_path))
    driver.get(scripted)
    yield driver
    severe = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    shot = os.environ.get("ONEBIT_SHOTS")
    if shot:
        driver.save_screenshot(os.path.join(shot, f"{os.environ['PYTEST_CURRENT_TEST'].split('::')[1].split(' ')[0]}.png"))
    driver.quit()
    assert not [entry for entry in severe if "status of 400" not in entry["message"] and "status of 500" not in entry["message"]], severe


def say(page, text):
    box = page.find_element(By.ID, "text")
    box.send_keys(text, Keys.ENTER)


def wait(page, condition, message=""):
    # The page writes what is under way anew while it is looked at.
    return WebDriverWait(page, 30, ignored_exceptions=[StaleElementReferenceException]).until(lambda _: condition(), message)


def last(page):
    return page.find_elements(By.CSS_SELECTOR, ".assistant")[-1]


def done(page):
    wait(page, lambda: page.find_elements(By.CSS_SELECTOR, ".assistant") and not page.find_elements(By.CSS_SELECTOR, ".live"))
    return last(page)


def test_an_answer_streams_with_its_reasoning_folded(page):
    say(page, "Why does it rain?")
    wait(page, lambda: page.find_elements(By.CSS_SELECTOR, ".live .thought.now"), "reasoning is shown while it comes")
    answer = done(page)
    fold = answer.find_element(By.CSS_SELECTOR, ".thought")
    assert fold.get_attribute("open") is None and "Thought for" in fold.text
    assert answer.find_element(By.CSS_SELECTOR, "strong").text == "water on its way back"
    assert len(answer.find_elements(By.CSS_SELECTOR, "ol li")) == 3
    assert "return drop_mm > 0.5" in answer.find_element(By.CSS_SELECTOR, "pre").text
    assert "tok/s" in answer.find_element(By.CSS_SELECTOR, ".stats").text
    fold.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    assert "evaporation" in fold.text, "the keyboard opens the fold"


def test_markup_in_an_answer_stays_text(page):
    say(page, "a table")
    answer = done(page)
    assert len(answer.find_elements(By.CSS_SELECTOR, "tbody tr")) == 2
    assert "<b>Not bold</b>" in answer.text


def test_lists_hold_blocks_and_no_line_stops_the_page(page):
    say(page, "in steps")
    answer = done(page)
    assert answer.find_element(By.TAG_NAME, "h1").text == "Steps", "a heading may be indented"
    assert len(answer.find_elements(By.CSS_SELECTOR, ".body > ol > li")) == 2
    code = answer.find_element(By.CSS_SELECTOR, "ol li .code code").get_attribute("textContent")
    assert code == "make all\n  make check", "the list's margin is not the code's"
    assert len(answer.find_elements(By.CSS_SELECTOR, "ol li ul li")) == 2


def test_what_is_complete_stays_in_place_while_an_answer_grows(page):
    say(page, "something long")
    wait(page, lambda: "On and on" in last(page).text)
    say(page, "not sent while an answer is under way")
    page.find_element(By.ID, "text").send_keys(Keys.ESCAPE)
    done(page)
    page.find_element(By.ID, "text").clear()
    say(page, "Why does it rain?")
    wait(page, lambda: last(page).find_elements(By.CSS_SELECTOR, ".body ol li"))
    first = last(page).find_element(By.CSS_SELECTOR, ".body > p")
    done(page)
    assert first.text.startswith("Rain is"), "the same element"


def test_a_message_is_edited_while_its_answer_comes(page):
    say(page, "something long")
    wait(page, lambda: "On and on" in last(page).text)
    page.execute_script("document.querySelector('.user [aria-label=Edit]').click()")
    area = page.find_element(By.CSS_SELECTOR, ".user textarea")
    area.clear()
    area.send_keys(Keys.ENTER)
    assert page.find_elements(By.CSS_SELECTOR, ".live"), "nothing is sent for no text, and nothing lost"
    area.send_keys("a table", Keys.ENTER)
    assert len(done(page).find_elements(By.CSS_SELECTOR, "tbody tr")) == 2
    assert [said.text for said in page.find_elements(By.CSS_SELECTOR, ".said")] == ["a table"]


def test_an_answer_cut_off_by_loading_anew_is_kept(page):
    say(page, "something long")
    wait(page, lambda: "On and on" in last(page).text)
    page.refresh()
    wait(page, lambda: page.find_elements(By.CSS_SELECTOR, ".assistant"))
    assert "On and on" in last(page).text and "Stopped." in last(page).text
    assert not page.find_elements(By.CSS_SELECTOR, ".assistant .fault")


def test_two_pages_of_one_browser_keep_both_their_conversations(page, scripted):
    first = page.current_window_handle
    page.switch_to.new_window("tab")
    page.get(scripted)
    say(page, "a table in the second page")
    done(page)
    page.switch_to.window(first)
    wait(page, lambda: len(page.find_elements(By.CSS_SELECTOR, "#talks li")) == 1, "the other page's is listed")
    say(page, "a table in the first page")
    done(page)
    page.refresh()
    wait(page, lambda: len(page.find_elements(By.CSS_SELECTOR, "#talks li")) == 2)


def test_stop_and_regenerate(page):
    say(page, "something long")
    wait(page, lambda: "On and on" in last(page).text)
    page.find_element(By.ID, "text").send_keys(Keys.ESCAPE)
    answer = done(page)
    assert "Stopped." in answer.text
    [button for button in answer.find_elements(By.TAG_NAME, "button") if button.text == "Regenerate"][0].click()
    wait(page, lambda: page.find_elements(By.CSS_SELECTOR, ".live"))
    page.find_element(By.ID, "send").click()
    assert len(page.find_elements(By.CSS_SELECTOR, ".assistant")) == 1
    done(page)


def test_calls_are_shown_and_answered(page):
    page.find_element(By.ID, "settings").click()
    tools = '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]'
    page.find_element(By.NAME, "tools").send_keys(tools)
    page.find_element(By.CSS_SELECTOR, "dialog .firm").click()
    say(page, "use the tool")
    call = done(page).find_element(By.CSS_SELECTOR, ".call")
    assert "weather" in call.text and '"city": "Köln"' in call.text
    call.find_element(By.TAG_NAME, "textarea").send_keys("dry")
    call.find_element(By.TAG_NAME, "button").click()
    wait(page, lambda: "stays dry" in last(page).text)
    done(page)


def test_faults_are_said(page):
    say(page, "please fail")
    wait(page, lambda: page.find_elements(By.CSS_SELECTOR, ".fault"))
    assert "prompt is empty" in done(page).find_element(By.CSS_SELECTOR, ".fault").text


def test_conversations_and_settings_are_kept(page):
    say(page, "a table")
    done(page)
    page.find_element(By.ID, "new").click()
    say(page, "Why does it rain?")
    done(page)
    page.find_element(By.ID, "settings").click()
    page.find_element(By.NAME, "temperature").send_keys("0.25")
    page.find_element(By.CSS_SELECTOR, "dialog .firm").click()
    page.find_element(By.ID, "theme").click()
    page.refresh()
    wait(page, lambda: len(page.find_elements(By.CSS_SELECTOR, "#talks li")) == 2)
    assert "Why does it rain?" in page.find_element(By.CSS_SELECTOR, "#talks .here").text
    assert page.find_element(By.TAG_NAME, "html").get_attribute("data-theme") in ("dark", "light")
    page.find_element(By.ID, "settings").click()
    assert page.find_element(By.NAME, "temperature").get_attribute("value") == "0.25"


def test_everything_can_be_reached_by_keyboard(page):
    say(page, "a table")
    done(page)
    page.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    page.execute_script("document.activeElement.blur()")
    reached = set()
    for _ in range(40):
        page.switch_to.active_element.send_keys(Keys.TAB)
        element = page.switch_to.active_element
        reached.add(element.get_attribute("id") or element.get_attribute("aria-label") or element.text)
    assert {"new", "model", "theme", "settings", "text", "Copy", "Regenerate", "Edit"} <= reached, reached
    page.find_element(By.TAG_NAME, "body").send_keys(Keys.ALT, "n")
    wait(page, lambda: page.find_elements(By.CSS_SELECTOR, ".welcome"))


def paint(page, text):
    choose(page, "brush")
    say(page, text)
    return done(page)


def choose(page, model):
    wait(page, lambda: [o for o in page.find_elements(By.CSS_SELECTOR, "#model option") if o.get_attribute("value") == model])
    page.find_element(By.CSS_SELECTOR, f'#model option[value="{model}"]').click()


def field(page, name):
    return page.find_element(By.CSS_SELECTOR, f'#picture [name="{name}"]')


def test_a_picture_is_made_and_shown(page):
    assert not page.find_element(By.ID, "picture").is_displayed(), "a text model has no sizes"
    choose(page, "brush")
    assert field(page, "size").is_displayed()
    field(page, "size").send_keys("256x256")
    field(page, "seed").send_keys("7")
    field(page, "n").clear()
    field(page, "n").send_keys("2")
    say(page, "A bonsai tree on a desk")
    wait(page, lambda: "step 2 of 4" in last(page).text, "steps are told")
    wait(page, lambda: last(page).find_element(By.TAG_NAME, "progress").get_attribute("max") == "4")
    answer = done(page)
    images = answer.find_elements(By.TAG_NAME, "img")
    assert len(images) == 2
    wait(page, lambda: all(page.execute_script("return arguments[0].naturalWidth", image) == 256 for image in images))
    assert images[0].get_attribute("alt") == "A bonsai tree on a desk"
    assert "seed 7" in answer.text and "seed 8" in answer.text
    save = answer.find_element(By.LINK_TEXT, "Save")
    assert save.get_attribute("download") == "picture-7.png" and save.get_attribute("href").startswith("data:image/png;base64,")
    assert "complete" in page.find_element(By.ID, "status").get_attribute("textContent")


def test_a_picture_can_be_stopped_and_made_again(page):
    choose(page, "brush")
    field(page, "size").send_keys("256x256")
    field(page, "steps").send_keys("500")
    say(page, "A lighthouse")
    wait(page, lambda: "step 2 of 500" in last(page).text)
    page.find_element(By.ID, "text").send_keys(Keys.ESCAPE)
    assert "Stopped." in done(page).text
    field(page, "steps").clear()
    answer = paint(page, "A red fox")
    seed = answer.find_element(By.CSS_SELECTOR, "figcaption span").text.split(" ·")[0]
    # The browser keeps the seed and not the picture.
    page.refresh()
    wait(page, lambda: page.find_elements(By.CSS_SELECTOR, ".gone"))
    [button for button in page.find_elements(By.TAG_NAME, "button") if button.text == "Make it again"][0].send_keys(Keys.ENTER)
    wait(page, lambda: page.find_elements(By.CSS_SELECTOR, ".assistant img"))
    assert seed in done(page).text


def test_faults_of_pictures_are_said(page):
    assert "NaN" in paint(page, "please fail").find_element(By.CSS_SELECTOR, ".fault").text
    field(page, "steps").send_keys("0")
    say(page, "no steps")
    wait(page, lambda: len(page.find_elements(By.CSS_SELECTOR, ".assistant .fault")) == 2)


def test_text_and_pictures_in_one_conversation(page):
    paint(page, "A quiet street")
    choose(page, "script")
    say(page, "a table")
    answer = done(page)
    assert len(answer.find_elements(By.CSS_SELECTOR, "tbody tr")) == 2
